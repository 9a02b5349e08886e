import * as React from 'react';

import { type ILanguage, useLanguage } from '../../language';
import { type IJobView, isFinal } from '../../protocol';
import { Icon, type IconName } from '../controls/Icon';

export interface IStatusProps {
  /** The user's jobs. */
  views: readonly IJobView[];
  /** Names of jobs that failed since this page was opened. */
  failed: readonly string[];
  stale: boolean;
  receivedS: number;
  nowS: number;
  onOpen: () => void;
}

interface IStatusText {
  icon: IconName;
  parts: string[];
  isFailure: boolean;
}

/** With this many queued jobs, a page may not know all of them. */
const KNOWN_MAX = 200;

/** Return when the only running job ends; empty if that is not known. */
function endText({ trans, format }: ILanguage, running: readonly IJobView[]): string {
  const progress = running.length === 1 ? running[0].progress : null;
  if (!progress || progress.left_s_low === null || progress.left_s_high === null) {
    return '';
  }
  const { at_s: atS, left_s_low: lowS, left_s_high: highS } = progress;
  return trans.__('ends %1', format.clockRange(atS + lowS, atS + highS));
}

/** Return `1 running`, `ends 14:52–14:55`, `2 queued`, or null if the user has no jobs to report. */
export function statusText(language: ILanguage, props: Omit<IStatusProps, 'onOpen'>): IStatusText | null {
  const { trans, format } = language;
  const open = props.views.filter(view => !isFinal(view.state));
  const queued = open.filter(view => view.state === 'QUEUED').length;
  const running = open.filter(view => view.state !== 'QUEUED' && view.state !== 'HALTED');
  const newestFailed = props.failed.at(-1);
  if (open.length === 0 && newestFailed === undefined) {
    return null;
  }
  if (props.stale) {
    const updated = trans.__('Training: last update %1', format.ago(props.nowS - props.receivedS));
    return { icon: 'plug', parts: [updated], isFailure: false };
  }
  const parts: string[] = [];
  if (newestFailed !== undefined) {
    parts.push(trans.__('%1 failed', newestFailed));
  }
  if (running.length) {
    parts.push(trans._n('%1 running', '%1 running', running.length));
    parts.push(newestFailed === undefined ? endText(language, running) : '');
  }
  if (queued) {
    const inQueue = Math.max(...open.map(view => view.waiting ?? 0));
    const number = queued >= KNOWN_MAX && inQueue > queued ? `${queued}+` : String(queued);
    parts.push(trans._n('%2 queued', '%2 queued', queued, number));
  }
  const shown = parts.filter(Boolean);
  if (shown.length === 0) {
    return null;
  }
  const icon = newestFailed !== undefined ? 'fail' : running.length ? 'active' : 'queued';
  return { icon, parts: shown, isFailure: newestFailed !== undefined };
}

/** The item in the status bar; a press opens the panel. */
export function StatusItem(props: IStatusProps): React.JSX.Element | null {
  const language = useLanguage();
  const { trans } = language;
  const status = statusText(language, props);
  if (!status) {
    return null;
  }
  const spoken = status.parts.join(', ').replace(/–/g, ` ${trans._p('from … to …', 'to')} `);
  return (
    <button
      type="button"
      className="jp-dlaas-statusitem"
      aria-label={
        props.stale
          ? trans.__('%1. Open the training panel', spoken)
          : trans.__('Training: %1. Open the training panel', spoken)
      }
      onClick={props.onOpen}
    >
      <span data-tone={status.isFailure ? 'bad' : undefined}>
        <Icon name={status.icon} marked={status.isFailure} />
      </span>
      {status.parts.join(' · ')}
    </button>
  );
}
