import type { IJobState } from '../../model/job';
import { shownSize, sizeUnit } from '../../model/size';
import { type IInterruption, type IJobView, isFinal, type Point } from '../../protocol';
import * as format from '../format';

/** A line of a chart: x in seconds since the job started; null is a hole, never a straight line across. */
interface ILine {
  x: number[];
  y: (number | null)[];
  /** Of some points: the value that is no height, NaN or infinite. */
  odd?: ReadonlyMap<number, number>;
}

/** A stretch of a curve in which its values are NaN or infinite; x in seconds since the job started. */
interface IGap {
  from: number;
  to: number;
  text: string;
}

/** One row of the metrics part: a quantity over the time axis that all rows share. */
export interface ITrack {
  key: string;
  kind: 'loss' | 'accuracy' | 'rate' | 'gpus';
  label: string;
  value: string;
  unit: string;
  /** Said below the label where the program did not log it itself: "from the log". */
  origin: string;
  line: ILine;
  /** A running mean of the values, drawn beside them where there are many. */
  smoothed: ILine['y'] | null;
  gaps: readonly IGap[];
  low: number;
  high: number;
  range: [string, string];
  stepped: boolean;
  filled: boolean;
  show: (value: number) => string;
}

/** One change of size: a line through all rows. */
interface IMark {
  x: number;
  text: string;
  cause: string;
  /** All of it in words: from, to, by whom, when, at which step, how long the pause was. */
  said: string;
}

/** What stands above the lines: one mark, or several that are too near to each other to have words of their own. */
export interface IFlag {
  /** Which of all changes its first one is: stays, while flags come closer to each other. */
  first: number;
  x: number;
  text: string;
  /** Empty where a neighbour leaves no room for it. */
  cause: string;
  name: string;
  marks: readonly IMark[];
  /** Near to the one before. */
  tight: boolean;
}

export interface IChart {
  tracks: ITrack[];
  marks: IMark[];
  flags: IFlag[];
  ticks: { x: number; text: string }[];
  end: number;
}

const CROWDED = 0.09;
const TIGHT = 0.14;
const TRACKS_MOST = 8;

function timeZero(view: IJobView, curves: IJobState['curves']): number {
  let first = view.started_s ?? Infinity;
  for (const points of curves.values()) {
    first = Math.min(first, points[0][1]);
  }
  return first;
}

/** Whether the curves break off: devices were given up, or the learners began anew. */
function isBreak(one: IInterruption): boolean {
  return one.held_s !== one.at_s || one.to_s === null || one.after === one.before;
}

function withHoles(points: readonly Point[], zero: number, breaks: readonly IInterruption[]): ILine {
  const steps = points.slice(1).map((p, i) => p[1] - points[i][1]);
  const usual = steps.slice().sort((a, b) => a - b)[Math.floor(steps.length / 2)] ?? 0;
  const longest = Math.max(30, 20 * usual);
  const x: number[] = [];
  const y: (number | null)[] = [];
  const odd = new Map<number, number>();
  points.forEach((point, i) => {
    const at = point[1] - zero;
    const broken =
      i > 0 && breaks.some(one => one.at_s < point[1] && (one.to_s ?? Infinity) > points[i - 1][1]);
    if (i > 0 && (broken || steps[i - 1] > longest)) {
      x.push((x[x.length - 1] + at) / 2);
      y.push(null);
    }
    x.push(at);
    y.push(Number.isFinite(point[2]) ? point[2] : null);
    if (!Number.isFinite(point[2])) {
      odd.set(x.length - 1, point[2]);
    }
  });
  return { x, y, odd };
}

/** Where a curve is NaN or infinite: one gap for each run of such values, named by the first. */
function gaps(points: readonly Point[], zero: number): IGap[] {
  const out: IGap[] = [];
  points.forEach(([step, t, value], i) => {
    if (Number.isFinite(value)) {
      return;
    }
    if (i > 0 && !Number.isFinite(points[i - 1][2])) {
      out[out.length - 1].to = t - zero;
    } else {
      const text = `${format.significant(value)} from step ${format.count(step)}`;
      out.push({ from: t - zero, to: t - zero, text });
    }
  });
  return out;
}

/**
 * An exponential running mean; its memory is a hundredth of the curve, and at least three points.
 *
 * Corrected for its beginning (divided by the weights so far, as in Adam), so the first values do not weigh more.
 */
export function smooth(y: ILine['y']): ILine['y'] {
  const keep = 1 - 1 / Math.max(3, y.length / 100);
  let sum = 0;
  let weight = 0;
  return y.map(value => {
    if (value === null) {
      sum = weight = 0;
      return null;
    }
    sum = keep * sum + (1 - keep) * value;
    weight = keep * weight + (1 - keep);
    return sum / weight;
  });
}

const ORIGINS = new Map([
  ['log', 'from the log'],
  ['tensorboard', 'from TensorBoard']
]);

function metricTrack(
  name: string,
  points: readonly Point[],
  zero: number,
  source: string,
  breaks: readonly IInterruption[]
): ITrack {
  const values = points.map(p => p[2]);
  const kind = format.metricKind(name, values);
  const show = (value: number): string => format.metricValue(kind, value);
  const line = withHoles(points, zero, breaks);
  const isNoisy = kind === 'loss' && points.length > 60;
  const finite = values.filter(Number.isFinite);
  let low = finite.length ? Math.min(...finite) : 0;
  let high = finite.length ? Math.max(...finite) : 1;
  if (kind === 'loss') {
    low = Math.min(0, low);
  } else if (kind === 'fraction') {
    low = Math.floor(low * 5) / 5;
    high = Math.max(low + 0.2, Math.ceil(high * 5) / 5);
  }
  if (low === high) {
    high = low + Math.max(1e-9, Math.abs(low) || 1);
  }
  const range: [string, string] =
    kind === 'fraction'
      ? [format.percent(high), format.percent(low)]
      : [format.significant(high, 2), format.significant(low, 2)];
  return {
    key: `metric ${name}`,
    kind: kind === 'loss' ? 'loss' : 'accuracy',
    label: format.metricLabel(name),
    value: show(values[values.length - 1]),
    unit: '',
    origin: ORIGINS.get(source) ?? '',
    line,
    smoothed: isNoisy ? smooth(line.y) : null,
    gaps: gaps(points, zero),
    low,
    high,
    range,
    stepped: kind === 'fraction' && points.length <= 100,
    filled: false,
    show
  };
}

/** Steps per second between logged points: known for the whole job, also after a reload of the page. */
function rateTrack(state: IJobState, zero: number, breaks: readonly IInterruption[]): ITrack | null {
  let longest: readonly Point[] = [];
  for (const points of state.curves.values()) {
    longest = points.length > longest.length ? points : longest;
  }
  const stride = Math.max(1, Math.floor(longest.length / 120));
  const x: number[] = [];
  const y: (number | null)[] = [];
  for (let i = stride; i < longest.length; i += stride) {
    const [stepA, tA] = longest[i - stride];
    const [stepB, tB] = longest[i];
    if (tB > tA) {
      x.push(tB - zero);
      const broken = breaks.some(one => one.at_s < tB && (one.to_s ?? Infinity) > tA);
      y.push(stepB > stepA && !broken ? (stepB - stepA) / (tB - tA) : null);
    }
  }
  const rates = y.filter((v): v is number => v !== null);
  if (rates.length < 4) {
    return null;
  }
  const { progress } = state;
  // Samples where the learners say how many go into a step; line and number are then both in samples.
  const steps = progress?.steps_per_s ?? 0;
  const samples = steps > 0 ? (progress?.samples_per_s ?? null) : null;
  const each = samples === null ? 1 : samples / steps;
  const unit = samples === null ? 'steps/s' : 'samples/s';
  const high = each * Math.max(...rates);
  const now = samples ?? progress?.steps_per_s ?? rates[rates.length - 1];
  const rests = ['QUEUED', 'DEPLOYING', 'HALTED'].includes(state.view.state);
  return {
    key: 'rate',
    kind: 'rate',
    label: 'Throughput',
    value: rests ? '–' : format.significant(now),
    unit: rests ? '' : unit,
    origin: '',
    line: { x, y: y.map(v => (v === null ? null : v * each)) },
    smoothed: null,
    gaps: [],
    low: 0,
    high,
    range: [format.significant(high, 2), '0'],
    stepped: false,
    filled: false,
    show: value => `${format.significant(value)} ${unit}`
  };
}

function sizeTrack(view: IJobView, zero: number, end: number): ITrack {
  const changes: [number, number][] = view.resizes.map(one => [one.at_s, one.after]);
  for (const one of view.interruptions ?? []) {
    if (one.held_s === null || one.held_s > one.at_s) {
      changes.push([one.at_s, 0]);
      if (one.held_s !== null) {
        changes.push([one.held_s, one.after ?? (view.size.held || one.before)]);
      }
    }
  }
  changes.sort((a, b) => a[0] - b[0]);
  const earliest = Math.min(view.resizes[0]?.at_s ?? Infinity, view.interruptions?.[0]?.at_s ?? Infinity);
  const began = [...view.resizes, ...(view.interruptions ?? [])].find(one => one.at_s === earliest)?.before;
  const x = [0];
  const y: (number | null)[] = [shownSize(view, began ?? (view.size.held || view.size.wish))];
  for (const [atS, learners] of changes) {
    x.push(Math.max(0, atS - zero));
    y.push(shownSize(view, learners));
  }
  const last = y[y.length - 1];
  x.push(end);
  y.push(last);
  const high = Math.max(shownSize(view, view.size.max), ...y.map(v => v ?? 0));
  const differs = view.size.held > 0 && view.size.held !== view.size.wish;
  return {
    key: 'size',
    kind: 'gpus',
    label: format.units(sizeUnit(view).replace(/^learner/, 'Learner'), 2),
    value: String(view.size.held > 0 && last !== 0 ? shownSize(view, view.size.held) : last),
    unit: differs ? `→ ${shownSize(view, view.size.wish)}` : '',
    origin: '',
    line: { x, y },
    smoothed: null,
    gaps: [],
    low: 0,
    high,
    range: [String(high), '0'],
    stepped: true,
    filled: true,
    show: value => String(value)
  };
}

function marks(view: IJobView, zero: number, end: number): IMark[] {
  const place = (atS: number): number => Math.min(1, Math.max(0, (atS - zero) / end));
  const all = view.resizes.map(resize => {
    const x = place(resize.at_s);
    const text = `${shownSize(view, resize.before)} → ${shownSize(view, resize.after)}`;
    const pause = resize.idle_s === null ? '' : `, ${format.duration(resize.idle_s)} of pause`;
    const said = `${text}, ${resize.by}, at ${format.clock(resize.at_s, true)}, step ${format.count(resize.step)}${pause}`;
    return { x, text, cause: resize.by, said };
  });
  for (const one of (view.interruptions ?? []).filter(isBreak)) {
    const gaveUp = one.held_s !== one.at_s;
    const text = gaveUp ? `${shownSize(view, one.before)} → 0` : 'restart';
    const said = `${text}, at ${format.clock(one.at_s, true)}, step ${format.count(one.step)}. ${one.text}`;
    all.push({ x: place(one.at_s), text, cause: one.by, said });
    if (gaveUp && one.to_s !== null && one.after !== null) {
      const back = `0 → ${shownSize(view, one.after)}`;
      const then = `${back}, back, at ${format.clock(one.to_s, true)}`;
      all.push({ x: place(one.to_s), text: back, cause: 'back', said: then });
    }
  }
  return all.sort((a, b) => a.x - b.x);
}

/** Marks that would touch share one flag. */
function flags(all: readonly IMark[]): IFlag[] {
  const starts: number[] = [];
  all.forEach((mark, i) => {
    if (i === 0 || mark.x - all[starts[starts.length - 1]].x >= CROWDED) {
      starts.push(i);
    }
  });
  return starts.map((first, i) => {
    const group = all.slice(first, starts[i + 1]);
    const { x, text, cause } = all[first];
    const tight = i > 0 && x - all[starts[i - 1]].x < TIGHT;
    if (group.length === 1) {
      const isFree = !tight && (i + 1 === starts.length || all[starts[i + 1]].x - x >= TIGHT);
      return { first, x, text, cause: isFree ? cause : '', name: `${text}, ${cause}`, marks: group, tight };
    }
    const changes = `${group.length} changes`;
    const name = `${changes}: ${group.map(mark => mark.text).join(', ')}`;
    return { first, x, text: changes, cause: '', name, marks: group, tight };
  });
}

const TICKS_S = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 43_200, 86_400];

function ticks(end: number, last: string): IChart['ticks'] {
  const step = TICKS_S.find(s => end / s <= 6) ?? Math.ceil(end / 6 / 86_400) * 86_400;
  const [unitS, unit] =
    step < 60 ? [1, 's'] : step < 3600 ? [60, 'min'] : step < 86_400 ? [3600, 'h'] : [86_400, 'd'];
  const out = [{ x: 0, text: `0 ${unit}` }];
  for (let at = step; at < end * 0.93; at += step) {
    out.push({ x: at / end, text: String(at / unitS) });
  }
  out.push({ x: 1, text: last });
  return out;
}

/** What the metrics part shows, or null while there is nothing to show. */
export function chart(state: IJobState): IChart | null {
  const { view, curves } = state;
  if (curves.size === 0) {
    return null;
  }
  const zero = timeZero(view, curves);
  let lastS = isFinal(view.state) || view.state === 'HALTED' ? 0 : (state.progress?.at_s ?? 0);
  for (const points of curves.values()) {
    lastS = Math.max(lastS, points[points.length - 1][1]);
  }
  const interruptions = view.interruptions ?? [];
  for (const one of interruptions) {
    lastS = Math.max(lastS, one.at_s, one.held_s ?? 0, one.to_s ?? 0);
  }
  const breaks = interruptions.filter(isBreak);
  const end = Math.max(0.1, lastS - zero);
  const tracks = [...curves]
    .slice(0, TRACKS_MOST)
    .map(([name, points]) => metricTrack(name, points, zero, state.sources.get(name) ?? '', breaks));
  const rate = rateTrack(state, zero, breaks);
  if (rate) {
    tracks.push(rate);
  }
  tracks.push(sizeTrack(view, zero, end));
  const lines = marks(view, zero, end);
  return {
    tracks,
    marks: lines,
    flags: flags(lines),
    ticks: ticks(end, isFinal(view.state) ? 'end' : view.state === 'PROCESSING' ? 'now' : 'last'),
    end
  };
}
