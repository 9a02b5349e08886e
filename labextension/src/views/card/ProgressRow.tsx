import * as React from 'react';

import { capitalised, wholePercent } from '../../format';
import { type ILanguage, useLanguage } from '../../language';
import type { IJobState } from '../../model/job';
import { type IProgress, isFinal } from '../../protocol';

function epochText({ trans, format }: ILanguage, progress: IProgress): string {
  return progress.epochs === null
    ? ''
    : trans.__('Epoch %1 of %2', format.count(progress.epoch), format.count(progress.epochs));
}

function stepText({ trans, format }: ILanguage, progress: IProgress): string {
  return progress.steps
    ? trans.__('step %1 of %2', format.count(progress.step), format.count(progress.steps))
    : trans.__('step %1', format.count(progress.step));
}

/** Describe the progress for screen readers. */
function spokenProgress(language: ILanguage, progress: IProgress): string {
  const { trans, format } = language;
  const percent = wholePercent(progress.fraction ?? 0);
  return [
    epochText(language, progress) || capitalised(stepText(language, progress)),
    progress.fraction === null ? '' : trans._n('%1 percent', '%1 percent', percent),
    progress.left_s_low !== null && progress.left_s_high !== null
      ? trans.__('%1 left', format.remainingSpoken(progress.left_s_low, progress.left_s_high))
      : ''
  ]
    .filter(Boolean)
    .join(', ');
}

/** The progress of training, as text and as a bar. */
export function ProgressRow(props: { state: IJobState; stale: boolean }): React.JSX.Element | null {
  const language = useLanguage();
  const { view, progress } = props.state;
  if (!progress) {
    return null;
  }
  const epoch = epochText(language, progress);
  const step = stepText(language, progress);
  const showsStep = progress.step > 0 || !progress.epoch;
  const isFrozen = view.state !== 'PROCESSING' || props.stale;
  return (
    <div className="jp-dlaas-progress">
      <div className="jp-dlaas-progress-text">
        <span>
          {epoch ? (
            <>
              <b>{epoch}</b>
              {showsStep && ` · ${step}`}
            </>
          ) : (
            <b>{capitalised(step)}</b>
          )}
        </span>
        <Remaining state={props.state} stale={props.stale} />
      </div>
      <div
        className="jp-dlaas-bar"
        role="progressbar"
        aria-label={language.trans.__('Progress')}
        aria-valuemin={0}
        aria-valuemax={100}
        aria-valuenow={progress.fraction === null ? undefined : wholePercent(progress.fraction)}
        aria-valuetext={spokenProgress(language, progress)}
        data-frozen={isFrozen ? '' : undefined}
      >
        <i style={{ width: `${100 * Math.min(1, progress.fraction ?? 0)}%` }} />
      </div>
    </div>
  );
}

/** The estimated time left, or the speed while there is no estimate. */
function Remaining(props: { state: IJobState; stale: boolean }): React.JSX.Element {
  const { trans, format } = useLanguage();
  const { view, progress } = props.state;
  if (view.state === 'HALTED') {
    return <span>{trans.__('Holds no devices')}</span>;
  }
  if (isFinal(view.state) || !progress || progress.left_s_low === null || progress.left_s_high === null) {
    const rate = view.state === 'PROCESSING' ? progress?.steps_per_s : null;
    return <span>{rate ? trans.__('%1 steps/s', format.significant(rate)) : ''}</span>;
  }
  const remaining = format.remaining(progress.left_s_low, progress.left_s_high);
  if (props.stale) {
    return <span>{trans.__('%1 left at the last update', remaining)}</span>;
  }
  if (view.state === 'QUEUED' || view.state === 'DEPLOYING') {
    return <span>{trans.__('%1 left once it trains', remaining)}</span>; // the start is not known
  }
  const end = format.clockRange(progress.at_s + progress.left_s_low, progress.at_s + progress.left_s_high);
  return (
    <span>
      <b className="jp-dlaas-nowrap">{trans.__('%1 left', remaining)}</b>
      {' · '}
      <span className="jp-dlaas-nowrap">{trans.__('ends %1', end)}</span>
    </span>
  );
}
