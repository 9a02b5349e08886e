import * as React from 'react';

import { wholePercent } from '../../format';
import { type ILanguage, useLanguage } from '../../language';
import type { IJobState } from '../../model/job';
import { isFinal } from '../../protocol';
import { Button } from '../controls/Button';
import { Icon, stateIcon, Swatch } from '../controls/Icon';
import { MoreButton } from '../controls/MoreButton';
import { Stepper } from '../controls/Stepper';
import type { IPanelHandlers, IPanelRow } from './props';

/** Say how far a training job is and when it ends, or the state of any other job. */
function rowText({ trans, format }: ILanguage, state: IJobState, nowS: number): string {
  const { view, progress } = state;
  if (view.state === 'PROCESSING' && progress && view.transition === null) {
    const parts = [
      progress.fraction === null
        ? trans.__('step %1', format.count(progress.step))
        : format.progress(progress.fraction)
    ];
    if (progress.left_s_low !== null && progress.left_s_high !== null) {
      const { at_s: atS, left_s_low: lowS, left_s_high: highS } = progress;
      parts.push(trans.__('ends %1', format.clockRange(atS + lowS, atS + highS)));
    }
    return parts.join(' · ');
  }
  const ended = view.ended_s === null ? '' : format.day(view.ended_s, nowS);
  // `Completed today 14:48`, but `Failed · your code · today 14:48`
  const separator = view.state_label.includes(' · ') ? ' · ' : ' ';
  const stateText = [view.state_label, ended].filter(Boolean).join(separator);
  return [stateText, view.status_line].filter(Boolean).join(' · ');
}

/** A job in the panel's list, with its size control and the action that resumes or retries it. */
export function JobRow(props: {
  row: IPanelRow;
  stale: boolean;
  nowS: number;
  handlers: IPanelHandlers;
}): React.JSX.Element {
  const language = useLanguage();
  const { trans } = language;
  const { row, stale, handlers } = props;
  const { view, progress } = row.state;
  const scale = view.actions.find(a => a.id === 'scale');
  const resume = view.actions.find(a => a.id === 'resume' && a.enabled);
  const retry = view.state === 'FAILED' ? view.actions.find(a => a.id === 'retry' && a.enabled) : undefined;
  const fraction = view.state === 'PROCESSING' ? (progress?.fraction ?? null) : null;
  const percent = wholePercent(fraction ?? 0);
  const whyNot = stale ? trans.__('Not connected: trying again.') : null;
  return (
    <li className="jp-dlaas-jobrow" data-status={view.state.toLowerCase()} data-tone={view.tone}>
      <Icon name={stateIcon(view)} marked />
      <div>
        <div className="jp-dlaas-jobname">
          <span className="jp-dlaas-hidden">{`${view.state_label}:`}</span>
          <Swatch number={view.number} />
          <b>
            <button type="button" className="jp-dlaas-plainlink" onClick={() => handlers.showJob(view.id)}>
              {view.id}
            </button>
          </b>
        </div>
        <p title={view.reason || undefined}>{rowText(language, row.state, props.nowS)}</p>
        {fraction !== null && (
          <div
            className="jp-dlaas-bar"
            role="progressbar"
            aria-label={trans.__('Progress of %1', view.id)}
            aria-valuemin={0}
            aria-valuemax={100}
            aria-valuenow={percent}
          >
            <i style={{ width: `${percent}%` }} />
          </div>
        )}
      </div>
      <div className="jp-dlaas-controls">
        {scale?.enabled && !isFinal(view.state) && !resume && (
          <Stepper
            state={row.state}
            small
            stale={stale}
            onScale={learners => handlers.scale(view.id, learners)}
          />
        )}
        {resume && (
          <Button
            label={trans.__('Resume')}
            name={trans.__('Resume %1', view.id)}
            whyNot={whyNot}
            onClick={() => handlers.act(view.id, 'resume')}
          />
        )}
        {retry && (
          <Button
            label={trans.__('Retry')}
            name={trans.__('Retry %1', view.id)}
            whyNot={whyNot}
            onClick={() => handlers.act(view.id, 'retry')}
          />
        )}
      </div>
      <MoreButton
        label={trans.__('More actions for %1', view.id)}
        onOpen={anchor => handlers.openMenu(view.id, anchor)}
      />
    </li>
  );
}
