import * as React from 'react';

import { type JobModel, stateOfCopy } from '../../model/job';
import { type IBundle, isFinal } from '../../protocol';
import type { ICardHandlers } from '../handlers';
import { useChanges, useNow, useSeen } from '../hooks';
import { JobCard } from './JobCard';

/** Return the name of the saved state's pool if this server's job of the same name is another job. */
function otherPool(bundle: IBundle | undefined, model: JobModel): string | undefined {
  const isOther = bundle && model.isLive && Math.abs(model.view.submitted_s - bundle.job.submitted_s) > 2;
  return isOther ? bundle.pool : undefined;
}

/** A card that follows its job. `bundle` is the state saved in the notebook, if the card stands in one. */
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
