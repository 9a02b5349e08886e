import { asNumber, asWireNumber, type IBundle, type IJobView, isReport, type Point } from '../protocol';
import { withoutEscapes } from './ansi';
import type { IJobState } from './job';
import { thin } from './metrics';

const POINTS_MOST = 200;
const LINES_MOST = 20;
const BLOCKS = '▁▂▃▄▅▆▇█';
const BLOCKS_WIDE = 30;

/** A job as the notebook keeps it: what the card needs when there is no server. */
export function bundleOf(state: IJobState, pool: string): IBundle {
  const curves: IBundle['curves'] = {};
  for (const [name, points] of state.curves) {
    let kept: Point[] = points.slice();
    while (kept.length > POINTS_MOST) {
      kept = thin(kept);
    }
    curves[name] = kept.map(([step, t, value]) => [step, t, asWireNumber(value)]);
  }
  const job: IJobView = { ...state.view, progress: state.progress };
  const log = state.log.rows.slice(-LINES_MOST).map(row => withoutEscapes(row.text).slice(0, 400));
  return { schema: 1, pool, job, curves, log };
}

function number(value: number): string {
  if (!Number.isFinite(value)) {
    return Number.isNaN(value) ? 'NaN' : value > 0 ? '∞' : '-∞';
  }
  return Number.isInteger(value) ? String(value) : value.toPrecision(3);
}

/** A curve in block characters, with its first and last value; "×" stands where a value is NaN or infinite. */
export function blocks(points: readonly Point[]): string {
  const values = points.map(p => p[2]);
  const finite = values.filter(Number.isFinite);
  const width = Math.min(BLOCKS_WIDE, values.length);
  const low = Math.min(...finite);
  const span = Math.max(...finite) - low || 1;
  let drawn = '';
  for (let i = 0; i < width; i++) {
    const value = values[Math.round((i * (values.length - 1)) / Math.max(1, width - 1))];
    const level = Math.min(7, Math.floor(((value - low) / span) * 8));
    drawn += Number.isFinite(value) ? BLOCKS[level] : '×';
  }
  return `${drawn} ${number(values[0])} → ${number(values[values.length - 1])}`;
}

/** One line, for readers of text. */
export function textOf(bundle: IBundle): string {
  const { job } = bundle;
  return [`${job.id}: ${job.state_label.toLowerCase()}`, job.status_line].filter(Boolean).join(' · ');
}

function element(name: string, ...children: (HTMLElement | string)[]): HTMLElement {
  const made = document.createElement(name);
  made.append(...children);
  return made;
}

/** A plain table without style, class, script, link or image, for readers that have none of ours. */
export function htmlOf(bundle: IBundle): string {
  const { job } = bundle;
  const rows: [string, string][] = [];
  for (const [name, points] of Object.entries(bundle.curves).slice(0, 6)) {
    rows.push([name, blocks(points.map(([step, t, value]) => [step, t, asNumber(value)]))]);
  }
  if (job.resizes.length) {
    const k = Math.max(1, job.gpus_per_learner);
    const sizes = [job.resizes[0].before, ...job.resizes.map(r => r.after)].map(n => n * k);
    rows.push([`${job.unit}s`, sizes.slice(-12).join(' → ')]);
  }
  if (job.failure) {
    const { where } = job.failure;
    rows.push(['What', job.failure.what]);
    if (where) {
      rows.push(['Where', `${where.label}, line ${where.line}`]);
    }
    rows.push(['What to do', job.failure.advice]);
  }
  if (job.results.length) {
    rows.push(['Results', job.results.join(', ')]);
  }
  for (const note of job.notes.filter(isReport)) {
    rows.push(['Report', note.text]);
  }
  const said = [` · ${job.state_label.toLowerCase()}`, job.status_line].filter(Boolean).join(' · ');
  const box = element('div', element('p', element('b', job.id), said));
  if (rows.length) {
    const cells = rows.map(([name, value]) =>
      element('tr', element('th', name), element('td', value.slice(0, 600)))
    );
    box.append(element('table', element('tbody', ...cells)));
  }
  const lines = bundle.log.slice(-10);
  if (lines.length) {
    const summary = `Last ${lines.length} log ${lines.length === 1 ? 'line' : 'lines'}`;
    box.append(element('details', element('summary', summary), element('pre', lines.join('\n'))));
  }
  return box.outerHTML;
}
