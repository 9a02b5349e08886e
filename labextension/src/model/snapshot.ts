import type { ILanguage } from '../language';
import { asNumber, asWireNumber, type IBundle, type IJobView, isReport, type Point } from '../protocol';
import { withoutEscapes } from './ansi';
import type { IJobState } from './job';
import { thin } from './metrics';
import { shownSize } from './size';

const POINTS_MAX = 200;
const LINES_MAX = 20;
const LINE_CHARS_MAX = 400;
const HTML_LINES_MAX = 10;
const CURVES_MAX = 6;
const SIZES_MAX = 12;
const CELL_CHARS_MAX = 600;
const BLOCKS = '▁▂▃▄▅▆▇█';
const BLOCKS_WIDTH = 30;

/** Return a job as the notebook stores it: what the card needs without a server. */
export function bundleOf(state: IJobState, pool: string): IBundle {
  const curves: IBundle['curves'] = {};
  for (const [name, points] of state.curves) {
    let kept: Point[] = points.slice();
    while (kept.length > POINTS_MAX) {
      kept = thin(kept);
    }
    curves[name] = kept.map(([step, t, value]) => [step, t, asWireNumber(value)]);
  }
  const job: IJobView = { ...state.view, progress: state.progress };
  const log = state.log.rows.slice(-LINES_MAX).map(row => withoutEscapes(row.text).slice(0, LINE_CHARS_MAX));
  return { schema: 1, pool, job, curves, log };
}

function number(value: number): string {
  if (!Number.isFinite(value)) {
    return Number.isNaN(value) ? 'NaN' : value > 0 ? '∞' : '-∞';
  }
  return Number.isInteger(value) ? String(value) : value.toPrecision(3);
}

/** Return a curve in block characters with its first and last value; "×" stands for NaN and infinities. */
export function blocks(points: readonly Point[]): string {
  const values = points.map(p => p[2]);
  const finite = values.filter(Number.isFinite);
  const width = Math.min(BLOCKS_WIDTH, values.length);
  const low = Math.min(...finite);
  const span = Math.max(...finite) - low || 1;
  let blockText = '';
  for (let i = 0; i < width; i++) {
    const value = values[Math.round((i * (values.length - 1)) / Math.max(1, width - 1))];
    const level = Math.min(7, Math.floor(((value - low) / span) * 8));
    blockText += Number.isFinite(value) ? BLOCKS[level] : '×';
  }
  return `${blockText} ${number(values[0])} → ${number(values[values.length - 1])}`;
}

/** Return one line of text. */
export function textOf(bundle: IBundle): string {
  const { job } = bundle;
  return [`${job.id}: ${job.state_label.toLowerCase()}`, job.status_line].filter(Boolean).join(' · ');
}

function element(name: string, ...children: (HTMLElement | string)[]): HTMLElement {
  const node = document.createElement(name);
  node.append(...children);
  return node;
}

/** Return the rows of the table: curves, sizes, failure, results, and reports. */
function tableRows({ trans, format }: ILanguage, bundle: IBundle): [string, string][] {
  const { job } = bundle;
  const rows: [string, string][] = [];
  for (const [name, points] of Object.entries(bundle.curves).slice(0, CURVES_MAX)) {
    rows.push([name, blocks(points.map(([step, t, value]) => [step, t, asNumber(value)]))]);
  }
  if (job.resizes.length) {
    const sizes = [job.resizes[0].before, ...job.resizes.map(resize => resize.after)];
    const shown = sizes.slice(-SIZES_MAX).map(learners => shownSize(job, learners));
    rows.push([format.unit(job.unit, 2), shown.join(' → ')]);
  }
  if (job.failure) {
    const { what, where, advice } = job.failure;
    rows.push([trans.__('What'), what]);
    if (where) {
      rows.push([trans.__('Where'), trans.__('%1, line %2', where.label, where.line)]);
    }
    rows.push([trans.__('What to do'), advice]);
  }
  if (job.results.length) {
    rows.push([trans.__('Results'), job.results.join(', ')]);
  }
  for (const note of job.notes.filter(isReport)) {
    rows.push([trans.__('Report'), note.text]);
  }
  return rows;
}

/** Return a plain table without style, class, script, link or image, for readers without this extension. */
export function htmlOf(language: ILanguage, bundle: IBundle): string {
  const { job } = bundle;
  const state = [` · ${job.state_label.toLowerCase()}`, job.status_line].filter(Boolean).join(' · ');
  const box = element('div', element('p', element('b', job.id), state));
  const rows = tableRows(language, bundle).map(([name, value]) =>
    element('tr', element('th', name), element('td', value.slice(0, CELL_CHARS_MAX)))
  );
  if (rows.length) {
    box.append(element('table', element('tbody', ...rows)));
  }
  const lines = bundle.log.slice(-HTML_LINES_MAX);
  if (lines.length) {
    const summary = language.trans._n('Last %1 log line', 'Last %1 log lines', lines.length);
    box.append(element('details', element('summary', summary), element('pre', lines.join('\n'))));
  }
  return box.outerHTML;
}
