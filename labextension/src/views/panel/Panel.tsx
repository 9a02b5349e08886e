import * as React from 'react';

import { Button } from '../controls/Button';
import { Icon } from '../controls/Icon';
import { First } from './FirstSteps';
import { MyJobs } from './MyJobs';
import { Pool } from './Pool';
import type { IPanelProps } from './props';
import { Queue } from './Queue';
import { Absent } from './ServerMissing';

function Tool(props: { icon: 'add' | 'gear'; name: string; onClick: () => void }): React.JSX.Element {
  return (
    <button
      type="button"
      className="jp-dlaas-button"
      data-bare=""
      aria-label={props.name}
      title={props.name}
      onClick={props.onClick}
    >
      <Icon name={props.icon} />
    </button>
  );
}

/** The side panel: the pool, my jobs, the queue. */
export function Panel(props: IPanelProps & { nowS: number }): React.JSX.Element {
  const { pool, handlers } = props;
  return (
    <section className="jp-dlaas jp-dlaas-panel" role="region" aria-label="Training">
      <header>
        <h3>Training</h3>
        {handlers.trainNotebook && !props.absent && (
          <Tool icon="add" name="Train this notebook" onClick={handlers.trainNotebook} />
        )}
        {handlers.openSettings && (
          <Tool icon="gear" name="Training settings" onClick={handlers.openSettings} />
        )}
      </header>
      {props.absent ? (
        <Absent handlers={handlers} />
      ) : (
        <>
          {props.stale && (
            <div className="jp-dlaas-banner" data-tone="idle">
              <Icon name="plug" />
              <div>Not connected. What stands here may be out of date.</div>
              <Button label="Try now" onClick={handlers.retryConnection} />
            </div>
          )}
          {pool && <Pool pool={pool} isAdmin={props.isAdmin && !props.stale} handlers={handlers} />}
          {props.rows.length > 0 ? <MyJobs {...props} /> : pool && <First handlers={handlers} />}
          <Queue {...props} />
        </>
      )}
    </section>
  );
}
