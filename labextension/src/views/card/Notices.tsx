import * as React from 'react';

import type { IJobState } from '../../model/job';
import { isFinal } from '../../protocol';
import { Banner } from '../controls/Banner';
import { Button } from '../controls/Button';
import * as format from '../format';
import type { ICardHandlers } from '../handlers';
import type { IJobCardProps } from './JobCard';

/** So long a banner tells of an interruption that is over. */
const TOLD_S = 600;

function ConnectionBanner(props: {
  state: IJobState;
  nowS: number;
  handlers: ICardHandlers;
}): React.JSX.Element {
  const { connection, view } = props.state;
  const again = <Button icon="retry" label="Try now" onClick={props.handlers.retryConnection} />;
  if (connection.kind === 'absent') {
    return (
      <Banner icon="plug" tone="idle" actions={again}>
        This Jupyter server has no training part: the card shows what the notebook kept.
      </Banner>
    );
  }
  const retry =
    connection.retryS !== null && connection.retryS > props.nowS
      ? ` Trying again in ${Math.max(1, Math.round(connection.retryS - props.nowS))} s.`
      : ' Trying again now.';
  return (
    <Banner icon="plug" tone="idle" actions={again}>
      <b>{`Last heard ${format.ago(props.nowS - connection.heardS)}.`}</b>
      {isFinal(view.state) ? '' : ' The job goes on without this page.'}
      {retry}
    </Banner>
  );
}

export function Notices(props: IJobCardProps & { stale: boolean }): React.JSX.Element | null {
  const { state, handlers } = props;
  const { view } = state;
  if (props.otherPool !== undefined) {
    return (
      <Banner icon="info" tone="idle">
        {`This job is of another pool${props.otherPool ? `, ${props.otherPool}` : ''}: the card shows what the notebook kept.`}
      </Banner>
    );
  }
  if (!props.allowed) {
    return (
      <Banner
        icon="lock"
        tone="idle"
        actions={<Button label="Allow for this job" onClick={handlers.allow} />}
      >
        This notebook is not trusted. The card shows what the file says and does nothing until you allow it.
      </Banner>
    );
  }
  if (state.gone) {
    return (
      <Banner icon="info" tone="idle">
        Removed from this pool: the card shows what the notebook kept.
      </Banner>
    );
  }
  if (props.stale || (state.connection.kind === 'absent' && !isFinal(view.state))) {
    return <ConnectionBanner state={state} nowS={props.nowS} handlers={handlers} />;
  }
  if (state.problem) {
    return (
      <Banner icon="warn" tone="warn">
        {state.problem}
      </Banner>
    );
  }
  const waits = view.state === 'QUEUED';
  if (view.reason && !waits && view.state !== 'FAILED' && view.transition !== 'scaling') {
    return (
      <Banner icon={view.tone === 'warn' ? 'warn' : 'info'} tone={view.tone === 'warn' ? 'warn' : 'idle'}>
        {view.reason}
      </Banner>
    );
  }
  const last = view.interruptions?.at(-1);
  if (last && last.by !== 'halted' && !isFinal(view.state) && view.state !== 'HALTED') {
    const { to_s: toS } = last;
    if (toS === null ? waits : props.nowS - toS < TOLD_S) {
      return (
        <Banner icon={last.by === 'preempted' ? 'back' : 'warn'} tone="warn">
          {last.text}
        </Banner>
      );
    }
  }
  return null;
}
