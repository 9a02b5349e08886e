import type { ILanguage } from '../../language';
import type { IJobState } from '../../model/job';
import { type IJobView, isFinal } from '../../protocol';
import { breaksCurves, flagsOf, type IFlag, type IMark, marksOf } from './marks';
import { type ITrack, metricTrack, rateTrack, sizeTrack } from './tracks';

export interface IChart {
  tracks: ITrack[];
  marks: IMark[];
  flags: IFlag[];
  ticks: { x: number; text: string }[];
  /** Length of the time axis in seconds. */
  end: number;
}

const METRICS_MAX = 8;
const TICKS_MAX = 6;
const MINUTE_S = 60;
const HOUR_S = 3600;
const DAY_S = 86_400;
const TICKS_S = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 43_200, DAY_S];

/** Return when the time axis begins. */
function timeZero(view: IJobView, curves: IJobState['curves']): number {
  return Math.min(view.started_s ?? Infinity, ...[...curves.values()].map(points => points[0][1]));
}

/** Return when the time axis ends: at the last thing known of the job. */
function timeEnd({ view, curves, progress }: IJobState): number {
  const hasEnded = isFinal(view.state) || view.state === 'HALTED';
  const times = [hasEnded ? 0 : (progress?.at_s ?? 0)];
  for (const points of curves.values()) {
    times.push(points[points.length - 1][1]);
  }
  for (const { at_s: atS, held_s: heldS, to_s: toS } of view.interruptions ?? []) {
    times.push(atS, heldS ?? 0, toS ?? 0);
  }
  return Math.max(...times);
}

function endLabel({ trans }: ILanguage, view: IJobView): string {
  if (isFinal(view.state)) {
    return trans._p('time axis', 'end');
  }
  return view.state === 'PROCESSING' ? trans._p('time axis', 'now') : trans._p('time axis', 'last');
}

function ticksOf(language: ILanguage, view: IJobView, end: number): IChart['ticks'] {
  const { trans } = language;
  const step = TICKS_S.find(s => end / s <= TICKS_MAX) ?? Math.ceil(end / TICKS_MAX / DAY_S) * DAY_S;
  const [unitS, zero] =
    step < MINUTE_S
      ? [1, trans.__('%1 s', 0)]
      : step < HOUR_S
        ? [MINUTE_S, trans.__('%1 min', 0)]
        : step < DAY_S
          ? [HOUR_S, trans.__('%1 h', 0)]
          : [DAY_S, trans.__('%1 d', 0)];
  const ticks = [{ x: 0, text: zero }];
  for (let at = step; at < end * 0.93; at += step) {
    ticks.push({ x: at / end, text: String(at / unitS) });
  }
  ticks.push({ x: 1, text: endLabel(language, view) });
  return ticks;
}

/** Return what the metrics part shows, or null while there is nothing to show. */
export function chart(language: ILanguage, state: IJobState): IChart | null {
  const { view, curves } = state;
  if (curves.size === 0) {
    return null;
  }
  const zeroS = timeZero(view, curves);
  const end = Math.max(0.1, timeEnd(state) - zeroS);
  const breaks = (view.interruptions ?? []).filter(breaksCurves);
  const rate = rateTrack(language, state, zeroS, breaks);
  const marks = marksOf(language, view, zeroS, end);
  return {
    tracks: [
      ...[...curves.keys()]
        .slice(0, METRICS_MAX)
        .map(name => metricTrack(language, state, name, zeroS, breaks)),
      ...(rate ? [rate] : []),
      sizeTrack(language, view, zeroS, end)
    ],
    marks,
    flags: flagsOf(language, marks),
    ticks: ticksOf(language, view, end),
    end
  };
}
