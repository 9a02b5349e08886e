import * as React from 'react';

import { type JobModel, stateOfCopy } from '../../model/job';
import { type IBundle, isFinal } from '../../protocol';
import type { ICardHandlers } from '../handlers';
import { useChanges, useNow, useSeen } from '../hooks';
import { JobCard } from './JobCard';

/** The same handle may name another job on another server: then the notebook's copy is all there is to show. */
function otherPool(bundle: IBundle | undefined, model: JobModel): string | undefined {
  const differs = bundle && model.isLive && Math.abs(model.view.submitted_s - bundle.job.submitted_s) > 2;
  return differs ? bundle.pool : undefined;
}

/** A card that follows its job. `bundle`: what the notebook kept of it, where the card stands in a notebook. */
export function LiveCard(props: {
  bundle?: IBundle;
  model: JobModel;
  handlers: ICardHandlers;
}): React.JSX.Element {
  const { bundle, model, handlers } = props;
  const box = React.useRef<HTMLDivElement>(null);
  const seen = useSeen(box);
  useChanges(model.changed, seen);
  const other = otherPool(bundle, model);
  const own = model.state;
  const state = other !== undefined && bundle ? stateOfCopy(bundle, own.connection) : own;
  const nowS = useNow(seen && other === undefined && !isFinal(state.view.state));
  return (
    <div ref={box}>
      <JobCard state={state} handlers={handlers} nowS={nowS} allowed otherPool={other} />
    </div>
  );
}
