import * as React from 'react';

import type { IJobView } from '../../protocol';

/** Paths on a 16 x 16 grid, drawn with the text's colour. */
const PATHS = {
  queued: 'M8 2a6 6 0 1 0 0 12a6 6 0 1 0 0-12M8 4.5V8l2.5 1.5',
  active: 'M1.5 8h3l2-5 3 10 2-5h3',
  down: 'M8 2v8M4.5 7 8 10.5 11.5 7M3 13.5h10',
  deploy: 'M2.5 5.5 8 2.5l5.5 3v5L8 13.5l-5.5-3zM2.5 5.5 8 8.5l5.5-3M8 8.5v5',
  store: 'M8 10.5V3M4.5 6.5 8 3l3.5 3.5M3 13.5h10',
  scale: 'M1.5 8h13M4.5 5l-3 3 3 3M11.5 5l3 3-3 3',
  warn: 'M8 2 14.5 13.5h-13zM8 6.5v3.5M8 11.6v.4',
  halt: 'M5.5 3v10M10.5 3v10',
  play: 'M4.5 2.8v10.4L13 8z',
  back: 'M6 3 2.5 6.5 6 10M2.5 6.5H10a3.5 3.5 0 0 1 0 7H6',
  done: 'M8 1.8a6.2 6.2 0 1 0 0 12.4a6.2 6.2 0 1 0 0-12.4M5 8.2l2.2 2.2L11 6',
  fail: 'M8 1.8a6.2 6.2 0 1 0 0 12.4a6.2 6.2 0 1 0 0-12.4M5.7 5.7l4.6 4.6M10.3 5.7l-4.6 4.6',
  cancel: 'M8 1.8a6.2 6.2 0 1 0 0 12.4a6.2 6.2 0 1 0 0-12.4M3.7 12.3l8.6-8.6',
  x: 'm4 4 8 8M12 4l-8 8',
  check: 'm3 8.5 3.2 3.2L13 5',
  minus: 'M3.5 8h9',
  plus: 'M3.5 8h9M8 3.5v9',
  more: 'M8 3.5v.1M8 8v.1M8 12.4v.1',
  right: 'm6 3.5 4.5 4.5L6 12.5',
  goto: 'M9 3h4v4M13 3 7.5 8.5M11 9.5V13H3V5h3.5',
  copy: 'M5.5 5.5h8v8h-8zM3 10.5H2.5v-8h8V3',
  retry: 'M13.2 8A5.2 5.2 0 1 1 11.5 4.2M13.5 1.8v3h-3',
  add: 'M8 1.8a6.2 6.2 0 1 0 0 12.4a6.2 6.2 0 1 0 0-12.4M8 5v6M5 8h6',
  gear: 'M2 4.5h5M11 4.5h3M2 11.5h3M9 11.5h5M9 2.5a2 2 0 1 0 0 4a2 2 0 1 0 0-4M7 9.5a2 2 0 1 0 0 4a2 2 0 1 0 0-4',
  plug: 'M5.5 2v3M10.5 2v3M3.5 5h9v3a4.5 4.5 0 0 1-9 0zM8 12.5v2',
  lock: 'M3.5 7.5h9v6h-9zM5.5 7.5V5a2.5 2.5 0 0 1 5 0v2.5',
  file: 'M4 1.8h5.5L12.5 5v9.2H4zM9.3 2v3.2h3.2',
  info: 'M8 1.8a6.2 6.2 0 1 0 0 12.4a6.2 6.2 0 1 0 0-12.4M8 7.3v3.7M8 4.9v.1'
} as const;

export type IconName = keyof typeof PATHS;

export function svgText(name: IconName): string {
  return (
    '<svg xmlns="http://www.w3.org/2000/svg" width="16" height="16" viewBox="0 0 16 16">' +
    `<path class="jp-icon3" fill="none" stroke="#616161" stroke-width="1.5" stroke-linecap="round" stroke-linejoin="round" d="${PATHS[name]}"/></svg>`
  );
}

export function Icon({ name, marked }: { name: IconName; marked?: boolean }): React.JSX.Element {
  return (
    <svg
      className={marked ? 'jp-dlaas-icon jp-dlaas-mark' : 'jp-dlaas-icon'}
      aria-hidden="true"
      viewBox="0 0 16 16"
      fill="none"
      stroke="currentColor"
      strokeWidth={name === 'more' ? 2.2 : 1.5}
      strokeLinecap="round"
      strokeLinejoin="round"
    >
      <path d={PATHS[name]} />
    </svg>
  );
}

/** The icon beside a state, as in the design's table of states. */
export function stateIcon(view: IJobView): IconName {
  switch (view.transition) {
    case 'scaling':
      return 'scale';
    case 'halting':
      return 'halt';
    case 'preempting':
      return 'back';
    case 'restarting':
      return 'retry';
    case 'cancelling':
      return 'x';
  }
  switch (view.state) {
    case 'QUEUED':
      return view.tone === 'warn' ? 'back' : 'queued';
    case 'DEPLOYING':
      return 'deploy';
    case 'DOWNLOADING':
      return 'down';
    case 'PROCESSING':
      return view.tone === 'warn' ? 'warn' : 'active';
    case 'STORING':
      return 'store';
    case 'COMPLETED':
      return 'done';
    case 'HALTED':
      return 'halt';
    case 'FAILED':
      return 'fail';
    case 'CANCELLED':
      return 'cancel';
  }
}

/** The job's colour: eight, then the same eight hatched. */
export function jobColour(number: number): {
  'data-job-color': number;
  'data-job-hatch'?: '';
} {
  const hatched = Math.floor(number / 8) % 2 === 1;
  return {
    'data-job-color': number % 8,
    ...(hatched ? { 'data-job-hatch': '' as const } : {})
  };
}

/** The number in a job's handle: 48 of resnet-48. */
export function numberOf(id: string): number {
  return Number(id.slice(id.lastIndexOf('-') + 1)) || 0;
}

export function Swatch({ number }: { number: number }): React.JSX.Element {
  return <span className="jp-dlaas-swatch" {...jobColour(number)} aria-hidden="true" />;
}
