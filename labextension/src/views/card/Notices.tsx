import * as React from 'react';

import { useLanguage } from '../../language';
import type { IJobState } from '../../model/job';
import { type IInterruption, type IJobView, isFinal } from '../../protocol';
import { Banner } from '../controls/Banner';
import { Button } from '../controls/Button';
import type { ICardHandlers } from '../handlers';
import type { IJobCardProps } from './JobCard';

/** A banner reports an interruption for this long after it is over. */
const INTERRUPTION_SHOWN_S = 600;

/** The banner of a card that does not hear from the server. */
function ConnectionBanner(props: {
  state: IJobState;
  nowS: number;
  handlers: ICardHandlers;
}): React.JSX.Element {
  const { trans, format } = useLanguage();
  const { connection, view } = props.state;
  const retry = <Button icon="retry" label={trans.__('Try now')} onClick={props.handlers.retryConnection} />;
  if (connection.kind === 'absent') {
    return (
      <Banner icon="plug" tone="idle" actions={retry}>
        {trans.__('This Jupyter server has no dlaas_server extension. The card shows the saved state.')}
      </Banner>
    );
  }
  const delayS = connection.retryS === null ? 0 : connection.retryS - props.nowS;
  return (
    <Banner icon="plug" tone="idle" actions={retry}>
      <b>{trans.__('Last update %1.', format.ago(props.nowS - connection.receivedS))}</b>
      {isFinal(view.state) ? '' : ` ${trans.__('The job continues without this page.')}`}
      {delayS > 0
        ? ` ${trans.__('Trying again in %1 s.', Math.max(1, Math.round(delayS)))}`
        : ` ${trans.__('Trying again now.')}`}
    </Banner>
  );
}

/** Return the interruption that a banner reports: one that lasts, or one that ended a while ago. */
function reportedInterruption(view: IJobView, nowS: number): IInterruption | null {
  const last = view.interruptions?.at(-1);
  if (!last || last.by === 'halted' || isFinal(view.state) || view.state === 'HALTED') {
    return null;
  }
  const isShown = last.to_s === null ? view.state === 'QUEUED' : nowS - last.to_s < INTERRUPTION_SHOWN_S;
  return isShown ? last : null;
}

/** At most one banner: the most important thing that is unusual about this card or its job. */
export function Notices(props: IJobCardProps & { stale: boolean }): React.JSX.Element | null {
  const { trans } = useLanguage();
  const { state, handlers } = props;
  const { view } = state;
  if (props.otherPool !== undefined) {
    return (
      <Banner icon="info" tone="idle">
        {props.otherPool
          ? trans.__('This job belongs to another pool, %1. The card shows the saved state.', props.otherPool)
          : trans.__('This job belongs to another pool. The card shows the saved state.')}
      </Banner>
    );
  }
  if (!props.allowed) {
    return (
      <Banner
        icon="lock"
        tone="idle"
        actions={<Button label={trans.__('Allow for this job')} onClick={handlers.allow} />}
      >
        {trans.__(
          'This notebook is not trusted. The card shows the saved state and contacts the server only after you allow it.'
        )}
      </Banner>
    );
  }
  if (state.gone) {
    return (
      <Banner icon="info" tone="idle">
        {trans.__('The record of this job was deleted from the pool. The card shows the saved state.')}
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
  const isWaiting = (view.waiting_for ?? []).length > 0;
  const hasStepper = view.tone !== 'warn' && view.actions.some(action => action.id === 'scale');
  const isAtStepper = hasStepper && view.size.held > 0 && view.size.wish !== view.size.held;
  const isShownElsewhere = (view.transition === 'scaling' || isAtStepper) && !isWaiting;
  if (view.reason && view.state !== 'QUEUED' && view.state !== 'FAILED' && !isShownElsewhere) {
    return (
      <Banner icon={view.tone === 'warn' ? 'warn' : 'info'} tone={view.tone === 'warn' ? 'warn' : 'idle'}>
        {view.reason}
      </Banner>
    );
  }
  const interruption = reportedInterruption(view, props.nowS);
  return interruption ? (
    <Banner icon={interruption.by === 'preempted' ? 'back' : 'warn'} tone="warn">
      {interruption.text}
    </Banner>
  ) : null;
}
