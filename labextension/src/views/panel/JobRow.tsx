import * as React from 'react';

import type { IJobState } from '../../model/job';
import { type IJobView, isFinal } from '../../protocol';
import { Button, NOT_CONNECTED } from '../controls/Button';
import { Icon, stateIcon, Swatch } from '../controls/Icon';
import { MoreButton } from '../controls/MoreButton';
import { Stepper } from '../controls/Stepper';
import * as format from '../format';
import type { IPanelHandlers, IPanelRow } from './props';

function rowText(view: IJobView, state: IJobState, nowS: number): string {
  const { progress } = state;
  if (view.state === 'PROCESSING' && progress && view.transition === null) {
    const parts = [
      progress.fraction === null ? `step ${format.count(progress.step)}` : format.percent(progress.fraction)
    ];
    if (progress.left_s_low !== null && progress.left_s_high !== null) {
      parts.push(
        `ends ${format.clockRange(progress.at_s + progress.left_s_low, progress.at_s + progress.left_s_high)}`
      );
    }
    return parts.join(' · ');
  }
  const when = view.ended_s === null ? '' : format.day(view.ended_s, nowS);
  return [`${view.state_label}${when ? ` ${when}` : ''}`, view.status_line].filter(Boolean).join(' · ');
}

export function JobRow(props: {
  row: IPanelRow;
  stale: boolean;
  nowS: number;
  handlers: IPanelHandlers;
}): React.JSX.Element {
  const { row, stale, handlers } = props;
  const { view, progress } = row.state;
  const scale = view.actions.find(a => a.id === 'scale');
  const resume = view.actions.find(a => a.id === 'resume' && a.enabled);
  const retry = view.state === 'FAILED' ? view.actions.find(a => a.id === 'retry' && a.enabled) : undefined;
  const percent = Math.round((progress?.fraction ?? 0) * 100);
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
        <p title={view.reason || undefined}>{rowText(view, row.state, props.nowS)}</p>
        {view.state === 'PROCESSING' && progress?.fraction !== undefined && progress.fraction !== null && (
          <div
            className="jp-dlaas-bar"
            role="progressbar"
            aria-label={`Progress of ${view.id}`}
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
            label="Resume"
            name={`Resume ${view.id}`}
            whyNot={stale ? NOT_CONNECTED : null}
            onClick={() => handlers.act(view.id, 'resume')}
          />
        )}
        {retry && (
          <Button
            label="Retry"
            name={`Retry ${view.id}`}
            whyNot={stale ? NOT_CONNECTED : null}
            onClick={() => handlers.act(view.id, 'retry')}
          />
        )}
      </div>
      <MoreButton
        label={`More actions for ${view.id}`}
        onOpen={anchor => handlers.openMenu(view.id, anchor)}
      />
    </li>
  );
}
