import * as React from 'react';

import type { IJobState } from '../../model/job';
import { sizeUnit } from '../../model/size';
import { isFinal } from '../../protocol';
import * as format from '../format';

function spoken(state: IJobState): string {
  const { progress } = state;
  if (!progress) {
    return '';
  }
  const parts = [
    progress.epochs === null ? `Step ${progress.step}` : `Epoch ${progress.epoch} of ${progress.epochs}`,
    progress.fraction === null ? '' : `${Math.round(progress.fraction * 100)} percent`,
    progress.left_s_low !== null && progress.left_s_high !== null
      ? `${format.leftSpoken(progress.left_s_low, progress.left_s_high)} left`
      : ''
  ];
  return parts.filter(Boolean).join(', ');
}

export function ProgressRow(props: { state: IJobState; stale: boolean }): React.JSX.Element | null {
  const { view, progress } = props.state;
  if (!progress) {
    return null;
  }
  const epoch =
    progress.epochs === null
      ? ''
      : `Epoch ${format.count(progress.epoch)} of ${format.count(progress.epochs)}`;
  const countsSteps = progress.step > 0 || !progress.epoch;
  const step = progress.steps
    ? `step ${format.count(progress.step)} of ${format.count(progress.steps)}`
    : `step ${format.count(progress.step)}`;
  const percent = progress.fraction === null ? undefined : Math.round(progress.fraction * 1000) / 10;
  const running = view.state === 'PROCESSING';
  const frozen = !running || props.stale;
  return (
    <div className="jp-dlaas-progress">
      <div className="jp-dlaas-progress-text">
        <span>
          {epoch ? (
            <>
              <b>{epoch}</b>
              {countsSteps && ` · ${step}`}
            </>
          ) : (
            <b>{step.charAt(0).toUpperCase() + step.slice(1)}</b>
          )}
        </span>
        <Remaining state={props.state} stale={props.stale} />
      </div>
      <div
        className="jp-dlaas-bar"
        role="progressbar"
        aria-label="Progress"
        aria-valuemin={0}
        aria-valuemax={100}
        aria-valuenow={percent === undefined ? undefined : Math.round(percent)}
        aria-valuetext={spoken(props.state)}
        data-frozen={frozen ? '' : undefined}
      >
        <i style={{ width: `${percent ?? 0}%` }} />
      </div>
    </div>
  );
}

function Remaining(props: { state: IJobState; stale: boolean }): React.JSX.Element {
  const { view, progress } = props.state;
  if (view.state === 'HALTED') {
    return <span>{`Holds no ${sizeUnit(view)}`}</span>;
  }
  if (isFinal(view.state) || !progress || progress.left_s_low === null || progress.left_s_high === null) {
    const rate =
      view.state === 'PROCESSING' && progress?.steps_per_s
        ? `${format.significant(progress.steps_per_s)} steps/s`
        : '';
    return <span>{rate}</span>;
  }
  const text = `${format.left(progress.left_s_low, progress.left_s_high)} left`;
  if (props.stale) {
    return <span>{text} when last heard</span>;
  }
  if (view.state === 'QUEUED' || view.state === 'DEPLOYING') {
    return <span>{text} once it trains</span>; // nobody knows the end before there is a start
  }
  const ends = format.clockRange(progress.at_s + progress.left_s_low, progress.at_s + progress.left_s_high);
  return (
    <span>
      <b className="jp-dlaas-nowrap">{text}</b> · ends <span className="jp-dlaas-nowrap">{ends}</span>
    </span>
  );
}
