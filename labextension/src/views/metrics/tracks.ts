import { capitalised, metricKind } from '../../format';
import type { ILanguage } from '../../language';
import type { IJobState } from '../../model/job';
import { shownSize, sizeUnit } from '../../model/size';
import type { IInterruption, IJobView, Point } from '../../protocol';

/** A line of a track: x in seconds since the job started; null is a hole in the line. */
export interface ILine {
  x: number[];
  y: (number | null)[];
  /** Values that have no height, NaN or infinite, by index. */
  odd?: ReadonlyMap<number, number>;
}

/** A stretch of a curve in which its values are NaN or infinite; x in seconds since the job started. */
export interface IGap {
  from: number;
  to: number;
  text: string;
}

/** One quantity over the time axis that all tracks share. */
export interface ITrack {
  key: string;
  kind: 'loss' | 'accuracy' | 'rate' | 'gpus';
  label: string;
  value: string;
  unit: string;
  /** Origin of the values, if the program did not log them itself: "from the log". */
  origin: string;
  line: ILine;
  /** Running mean of a noisy curve, drawn beside it. */
  smoothed: ILine['y'] | null;
  gaps: readonly IGap[];
  low: number;
  high: number;
  range: [string, string];
  stepped: boolean;
  filled: boolean;
  show: (value: number) => string;
}

/** A pause between points longer than this, and than 20 usual ones, is a hole in the line. */
const HOLE_S = 30;
const HOLE_STEPS = 20;
/** A loss curve with more points than this gets a running mean. */
const NOISY_POINTS = 60;
/** A curve with at most this many points is drawn in steps. */
const STEPPED_POINTS = 100;
const RATE_POINTS = 120;
const RATE_POINTS_MIN = 4;
/** Points at the start of an interval of the throughput that were recorded together, as a share of the interval. */
const BURST_SHARE = 0.05;

/** Return whether one of the interruptions lies between two points in time. */
function isInterrupted(breaks: readonly IInterruption[], fromS: number, toS: number): boolean {
  return breaks.some(({ at_s: atS, to_s: endS }) => atS < toS && (endS ?? Infinity) > fromS);
}

function lineOf(points: readonly Point[], zeroS: number, breaks: readonly IInterruption[]): ILine {
  const pauses = points.slice(1).map((point, i) => point[1] - points[i][1]);
  const usual = pauses.slice().sort((a, b) => a - b)[Math.floor(pauses.length / 2)] ?? 0;
  const longest = Math.max(HOLE_S, HOLE_STEPS * usual);
  const x: number[] = [];
  const y: (number | null)[] = [];
  const odd = new Map<number, number>();
  points.forEach(([, atS, value], i) => {
    const at = atS - zeroS;
    if (i > 0 && (pauses[i - 1] > longest || isInterrupted(breaks, points[i - 1][1], atS))) {
      x.push((x[x.length - 1] + at) / 2);
      y.push(null);
    }
    x.push(at);
    y.push(Number.isFinite(value) ? value : null);
    if (!Number.isFinite(value)) {
      odd.set(x.length - 1, value);
    }
  });
  return { x, y, odd };
}

/** Return where a curve is NaN or infinite: one gap for each run of such values, named by the first. */
function gapsOf({ trans, format }: ILanguage, points: readonly Point[], zeroS: number): IGap[] {
  const gaps: IGap[] = [];
  points.forEach(([step, atS, value], i) => {
    if (Number.isFinite(value)) {
      return;
    }
    if (i > 0 && !Number.isFinite(points[i - 1][2])) {
      gaps[gaps.length - 1].to = atS - zeroS;
    } else {
      const text = trans.__('%1 from step %2', format.significant(value), format.count(step));
      gaps.push({ from: atS - zeroS, to: atS - zeroS, text });
    }
  });
  return gaps;
}

/**
 * Return an exponential running mean; its memory is a hundredth of the curve, and at least three points.
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

function originOf({ trans }: ILanguage, source: string): string {
  switch (source) {
    case 'log':
      return trans.__('from the log');
    case 'tensorboard':
      return trans.__('from TensorBoard');
    default:
      return '';
  }
}

/** Return the value range of a metric's axis. */
function axisRange(kind: ReturnType<typeof metricKind>, values: readonly number[]): [number, number] {
  const finite = values.filter(Number.isFinite);
  let low = finite.length ? Math.min(...finite) : 0;
  let high = finite.length ? Math.max(...finite) : 1;
  if (kind === 'loss') {
    low = Math.min(0, low);
  } else if (kind === 'fraction') {
    low = Math.floor(low * 5) / 5;
    high = Math.max(low + 0.2, Math.ceil(high * 5) / 5);
  }
  return [low, low === high ? low + Math.max(1e-9, Math.abs(low) || 1) : high];
}

export function metricTrack(
  language: ILanguage,
  state: IJobState,
  name: string,
  zeroS: number,
  breaks: readonly IInterruption[]
): ITrack {
  const { format } = language;
  const points = state.curves.get(name) ?? [];
  const values = points.map(p => p[2]);
  const kind = metricKind(name, values);
  const line = lineOf(points, zeroS, breaks);
  const [low, high] = axisRange(kind, values);
  const show = (value: number): string => format.metricValue(kind, value);
  return {
    key: `metric ${name}`,
    kind: kind === 'loss' ? 'loss' : 'accuracy',
    label: format.metricLabel(name),
    value: show(values[values.length - 1]),
    unit: '',
    origin: originOf(language, state.sources.get(name) ?? ''),
    line,
    smoothed: kind === 'loss' && points.length > NOISY_POINTS ? smooth(line.y) : null,
    gaps: gapsOf(language, points, zeroS),
    low,
    high,
    range:
      kind === 'fraction'
        ? [format.percent(high), format.percent(low)]
        : [format.short(high), format.short(low)],
    stepped: kind === 'fraction' && points.length <= STEPPED_POINTS,
    filled: false,
    show
  };
}

/**
 * Return steps per second between logged points: known for the whole job, also after a reload of the page.
 *
 * Points that were recorded together, such as lines that were read at once, count as one: the time between them is not that of steps.
 */
function rateLine(state: IJobState, zeroS: number, breaks: readonly IInterruption[]): ILine {
  let longest: readonly Point[] = [];
  for (const points of state.curves.values()) {
    longest = points.length > longest.length ? points : longest;
  }
  const x: number[] = [];
  const y: (number | null)[] = [];
  if (!longest.length) {
    return { x, y };
  }
  let [startStep, startS] = longest[0];
  let openedS = startS;
  const leastS = (longest[longest.length - 1][1] - startS) / RATE_POINTS;
  for (const [endStep, endS] of longest) {
    if (endS - openedS < leastS * BURST_SHARE) {
      [startStep, startS] = [endStep, endS];
    } else if (endS > startS && endS - openedS >= leastS) {
      const isHole = endStep <= startStep || isInterrupted(breaks, startS, endS);
      x.push(endS - zeroS);
      y.push(isHole ? null : (endStep - startStep) / (endS - startS));
      [startStep, startS] = [endStep, endS];
      openedS = endS;
    }
  }
  return { x, y };
}

/** Return the throughput, in samples if the learners report how many a step has; null if little is known. */
export function rateTrack(
  { trans, format }: ILanguage,
  state: IJobState,
  zeroS: number,
  breaks: readonly IInterruption[]
): ITrack | null {
  const { x, y } = rateLine(state, zeroS, breaks);
  const rates = y.filter(rate => rate !== null);
  if (rates.length < RATE_POINTS_MIN) {
    return null;
  }
  const stepsPerS = state.progress?.steps_per_s ?? 0;
  const samplesPerS = stepsPerS > 0 ? (state.progress?.samples_per_s ?? null) : null;
  const samplesPerStep = samplesPerS === null ? 1 : samplesPerS / stepsPerS;
  const unit = samplesPerS === null ? trans.__('steps/s') : trans.__('samples/s');
  const high = samplesPerStep * Math.max(...rates);
  const current = samplesPerS ?? state.progress?.steps_per_s ?? rates[rates.length - 1];
  const isIdle = ['QUEUED', 'DEPLOYING', 'HALTED'].includes(state.view.state);
  return {
    key: 'rate',
    kind: 'rate',
    label: trans.__('Throughput'),
    value: isIdle ? '–' : format.significant(current),
    unit: isIdle ? '' : unit,
    origin: '',
    line: { x, y: y.map(rate => (rate === null ? null : rate * samplesPerStep)) },
    smoothed: null,
    gaps: [],
    low: 0,
    high,
    range: [format.short(high), '0'],
    stepped: false,
    filled: false,
    show: value => `${format.significant(value)} ${unit}`
  };
}

/** Return the job's size in learners after each change, in the order of time. */
function sizeChanges(view: IJobView): [number, number][] {
  const changes: [number, number][] = view.resizes.map(resize => [resize.at_s, resize.after]);
  for (const { at_s: atS, held_s: heldS, before, after } of view.interruptions ?? []) {
    if (heldS === null || heldS > atS) {
      changes.push([atS, 0]);
      if (heldS !== null) {
        changes.push([heldS, after ?? (view.size.held || before)]);
      }
    }
  }
  return changes.sort((a, b) => a[0] - b[0]);
}

function initialSize(view: IJobView): number {
  const all = [...view.resizes, ...(view.interruptions ?? [])];
  const earliestS = Math.min(...all.map(change => change.at_s));
  const first = all.find(change => change.at_s === earliestS);
  return first?.before ?? (view.size.held || view.size.wish);
}

export function sizeTrack({ format }: ILanguage, view: IJobView, zeroS: number, endS: number): ITrack {
  const changes = sizeChanges(view);
  const x = [0, ...changes.map(([atS]) => Math.max(0, atS - zeroS)), endS];
  const sizes = [initialSize(view), ...changes.map(([, learners]) => learners)];
  const y = sizes.map(learners => shownSize(view, learners));
  const last = y[y.length - 1];
  const high = Math.max(shownSize(view, view.size.max), ...y);
  const differs = view.size.held > 0 && view.size.held !== view.size.wish;
  return {
    key: 'size',
    kind: 'gpus',
    label: capitalised(format.unit(sizeUnit(view), 2)),
    value: String(view.size.held > 0 && last !== 0 ? shownSize(view, view.size.held) : last),
    unit: differs ? `→ ${shownSize(view, view.size.wish)}` : '',
    origin: '',
    line: { x, y: [...y, last] },
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
