import type { IJobView } from '../protocol';

/** Size as the user sees it: in devices, which is learners times devices per learner. */
export function shownSize(view: IJobView, learners: number): number {
  return learners * Math.max(1, view.gpus_per_learner);
}

export function sizeUnit(view: IJobView): string {
  return view.gpus_per_learner === 0 ? 'learner' : view.unit;
}
