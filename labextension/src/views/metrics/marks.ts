import type { ILanguage } from '../../language';
import { shownSize } from '../../model/size';
import type { IInterruption, IJobView } from '../../protocol';

/** A change of size or an interruption: a line through all tracks. */
export interface IMark {
  /** Position on the time axis, from 0 to 1. */
  x: number;
  text: string;
  cause: string;
  /** The change in words: sizes, cause, time, step, and pause. */
  description: string;
}

/** A label above the lines: of one mark, or of several that are too near to each other for labels of their own. */
export interface IFlag {
  /** Index of its first mark; does not change while flags move closer to each other. */
  first: number;
  x: number;
  text: string;
  /** Empty if a neighbour leaves no room for it. */
  cause: string;
  /** Accessible name. */
  name: string;
  marks: readonly IMark[];
  /** Near to the flag before. */
  tight: boolean;
}

/** Marks closer than this share a flag. */
const SHARED_DISTANCE = 0.09;
/** Flags closer than this are drawn without their cause. */
const TIGHT_DISTANCE = 0.14;

/** Return whether curves break off: devices were given up, or the learners started anew. */
export function breaksCurves(interruption: IInterruption): boolean {
  return (
    interruption.held_s !== interruption.at_s ||
    interruption.to_s === null ||
    interruption.after === interruption.before
  );
}

function resizeMarks({ trans, format }: ILanguage, view: IJobView, place: (atS: number) => number): IMark[] {
  return view.resizes.map(resize => {
    const text = `${shownSize(view, resize.before)} → ${shownSize(view, resize.after)}`;
    const time = format.clockWithSeconds(resize.at_s);
    const step = format.count(resize.step);
    return {
      x: place(resize.at_s),
      text,
      cause: resize.by,
      description:
        resize.idle_s === null
          ? trans.__('%1, %2, at %3, step %4', text, resize.by, time, step)
          : trans.__(
              '%1, %2, at %3, step %4, paused for %5',
              text,
              resize.by,
              time,
              step,
              format.duration(resize.idle_s)
            )
    };
  });
}

function interruptionMarks(
  { trans, format }: ILanguage,
  view: IJobView,
  interruption: IInterruption,
  place: (atS: number) => number
): IMark[] {
  const { at_s: atS, held_s: heldS, to_s: toS, before, after, by } = interruption;
  const lostDevices = heldS !== atS;
  const text = lostDevices ? `${shownSize(view, before)} → 0` : trans.__('restart');
  const description = trans.__(
    '%1, at %2, step %3. %4',
    text,
    format.clockWithSeconds(atS),
    format.count(interruption.step),
    interruption.text
  );
  const begin = { x: place(atS), text, cause: by, description };
  if (!lostDevices || toS === null || after === null) {
    return [begin];
  }
  const sizes = `0 → ${shownSize(view, after)}`;
  const resumed = trans.__('resumed');
  const end = {
    x: place(toS),
    text: sizes,
    cause: resumed,
    description: trans.__('%1, %2, at %3', sizes, resumed, format.clockWithSeconds(toS))
  };
  return [begin, end];
}

/** Return the marks of all resizes and interruptions, in the order of time. */
export function marksOf(language: ILanguage, view: IJobView, zeroS: number, endS: number): IMark[] {
  const place = (atS: number): number => Math.min(1, Math.max(0, (atS - zeroS) / endS));
  const interruptions = (view.interruptions ?? []).filter(breaksCurves);
  return [
    ...resizeMarks(language, view, place),
    ...interruptions.flatMap(interruption => interruptionMarks(language, view, interruption, place))
  ].sort((a, b) => a.x - b.x);
}

/** Return the flags of marks; marks that would touch share one. */
export function flagsOf({ trans }: ILanguage, marks: readonly IMark[]): IFlag[] {
  const starts: number[] = [];
  marks.forEach((mark, i) => {
    if (i === 0 || mark.x - marks[starts[starts.length - 1]].x >= SHARED_DISTANCE) {
      starts.push(i);
    }
  });
  return starts.map((first, i) => {
    const group = marks.slice(first, starts[i + 1]);
    const { x, text, cause } = marks[first];
    const tight = i > 0 && x - marks[starts[i - 1]].x < TIGHT_DISTANCE;
    if (group.length === 1) {
      const hasRoom = !tight && (i + 1 === starts.length || marks[starts[i + 1]].x - x >= TIGHT_DISTANCE);
      return { first, x, text, cause: hasRoom ? cause : '', name: `${text}, ${cause}`, marks: group, tight };
    }
    const changes = trans._n('%1 change', '%1 changes', group.length);
    const name = `${changes}: ${group.map(mark => mark.text).join(', ')}`;
    return { first, x, text: changes, cause: '', name, marks: group, tight };
  });
}
