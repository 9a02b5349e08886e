import * as React from 'react';

import { useLanguage } from '../../language';
import { Button } from '../controls/Button';
import { Icon } from '../controls/Icon';
import { FirstSteps } from './FirstSteps';
import { MyJobs } from './MyJobs';
import { Pool } from './Pool';
import type { IPanelProps } from './props';
import { Queue } from './Queue';
import { ServerMissing } from './ServerMissing';

function ToolButton(props: { icon: 'add' | 'gear'; name: string; onClick: () => void }): React.JSX.Element {
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

function Sections(props: IPanelProps): React.JSX.Element {
  const { trans } = useLanguage();
  const { pool, handlers } = props;
  return (
    <>
      {props.stale && (
        <div className="jp-dlaas-banner" data-tone="idle">
          <Icon name="plug" />
          <div>{trans.__('Not connected. The panel may be out of date.')}</div>
          <Button label={trans.__('Try now')} onClick={handlers.retryConnection} />
        </div>
      )}
      {pool && <Pool pool={pool} isAdmin={props.isAdmin && !props.stale} handlers={handlers} />}
      {props.rows.length > 0 ? <MyJobs {...props} /> : pool && <FirstSteps handlers={handlers} />}
      <Queue {...props} />
    </>
  );
}

/** The side panel: the pool, the user's jobs, and the queue. */
export function Panel(props: IPanelProps): React.JSX.Element {
  const { trans } = useLanguage();
  const { handlers } = props;
  return (
    <section className="jp-dlaas jp-dlaas-panel" role="region" aria-label={trans.__('Training')}>
      <header>
        <h3>{trans.__('Training')}</h3>
        {handlers.trainNotebook && !props.absent && (
          <ToolButton icon="add" name={trans.__('Train this notebook')} onClick={handlers.trainNotebook} />
        )}
        {handlers.openSettings && (
          <ToolButton icon="gear" name={trans.__('Training settings')} onClick={handlers.openSettings} />
        )}
      </header>
      {props.absent ? <ServerMissing handlers={handlers} /> : <Sections {...props} />}
    </section>
  );
}
