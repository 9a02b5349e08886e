import * as React from 'react';

import { type IJobView, isFinal } from '../../protocol';
import { Icon, type IconName } from '../controls/Icon';
import * as format from '../format';

interface IStatusProps {
  /** My jobs: unfinished ones, and those that failed since this page was opened. */
  views: readonly IJobView[];
  failed: readonly string[];
  stale: boolean;
  heardS: number;
  nowS: number;
  onOpen: () => void;
}

/** From so many on, a page may not know all of its jobs that wait. */
const LISTED = 200;

/** `1 running · ends 14:52–14:55 · 2 queued`, or null when there is nothing of mine. */
export function statusText(
  props: Omit<IStatusProps, 'onOpen'>
): { icon: IconName; text: string; bad: boolean } | null {
  const open = props.views.filter(v => !isFinal(v.state));
  const queued = open.filter(v => v.state === 'QUEUED').length;
  const running = open.filter(v => v.state !== 'QUEUED' && v.state !== 'HALTED');
  if (open.length === 0 && props.failed.length === 0) {
    return null;
  }
  if (props.stale) {
    return {
      icon: 'plug',
      text: `Training: last heard ${format.ago(props.nowS - props.heardS)}`,
      bad: false
    };
  }
  const parts: string[] = [];
  if (props.failed.length) {
    parts.push(`${props.failed[props.failed.length - 1]} failed`);
  }
  if (running.length) {
    parts.push(`${running.length} running`);
    const progress = running.length === 1 ? running[0].progress : null;
    if (progress && progress.left_s_low !== null && progress.left_s_high !== null && !props.failed.length) {
      parts.push(
        `ends ${format.clockRange(progress.at_s + progress.left_s_low, progress.at_s + progress.left_s_high)}`
      );
    }
  }
  if (queued) {
    const line = Math.max(...open.map(v => v.waiting ?? 0));
    parts.push(`${queued}${queued >= LISTED && line > queued ? '+' : ''} queued`);
  }
  if (parts.length === 0) {
    return null;
  }
  const icon = props.failed.length ? 'fail' : running.length ? 'active' : 'queued';
  return { icon, text: parts.join(' · '), bad: props.failed.length > 0 };
}

export function StatusItem(props: IStatusProps): React.JSX.Element | null {
  const said = statusText(props);
  if (!said) {
    return null;
  }
  const spoken = said.text
    .replace(/^Training: /, '')
    .replace(/ · /g, ', ')
    .replace(/–/g, ' to ');
  return (
    <button
      type="button"
      className="jp-dlaas-statusitem"
      aria-label={`Training: ${spoken}. Open the training panel`}
      onClick={props.onOpen}
    >
      <span data-tone={said.bad ? 'bad' : undefined}>
        <Icon name={said.icon} marked={said.bad} />
      </span>
      {said.text}
    </button>
  );
}
