/** Numbers, times and units in the user's language. `tests/golden/formats.json` holds what Python writes, too. */

import type { TranslationBundle } from './language';

const EN_DASH = '–';
const MINUTE_S = 60;
const HOUR_S = 3600;
const DAY_S = 86_400;

/** Write numbers, times and units; the rules are those of the design's section "Numbers". */
export class Format {
  constructor(
    private readonly trans: TranslationBundle,
    private readonly locale?: string
  ) {}

  /** Return `11,730`. */
  count(n: number): string {
    return new Intl.NumberFormat(this.locale, { maximumFractionDigits: 0 }).format(n);
  }

  /** Return a number with three significant digits: `0.412`, `84.1`, `11,730`. */
  significant(n: number, digits = 3): string {
    if (!Number.isFinite(n)) {
      return Number.isNaN(n) ? 'NaN' : n > 0 ? '∞' : '−∞';
    }
    if (n !== 0 && (Math.abs(n) < 1e-4 || Math.abs(n) >= 1e7)) {
      return n.toExponential(digits - 1);
    }
    if (Math.abs(n) >= 10 ** digits) {
      return this.count(Math.round(n));
    }
    return new Intl.NumberFormat(this.locale, {
      minimumSignificantDigits: n === 0 ? 1 : digits,
      maximumSignificantDigits: digits
    }).format(n);
  }

  /** Return a number for the end of an axis, with two significant digits: `0.41`, `84`, `12K`. */
  short(n: number): string {
    if (!Number.isFinite(n) || Math.abs(n) < 1000) {
      return this.significant(n, 2);
    }
    const options = { notation: 'compact', maximumSignificantDigits: 2 } as const;
    return new Intl.NumberFormat(this.locale, options).format(n);
  }

  percent(fraction: number, decimals = 0): string {
    return new Intl.NumberFormat(this.locale, {
      style: 'percent',
      minimumFractionDigits: decimals,
      maximumFractionDigits: decimals
    }).format(fraction);
  }

  /** Return `24%`; never 100% before the end. */
  progress(fraction: number): string {
    return this.percent(wholePercent(fraction) / 100);
  }

  /** Return `0.3 s`, `38 ms`, `41 s`, `3 min 20 s`, `2 h 05 min`, `3 d 4 h`; at most two units. */
  duration(seconds: number): string {
    const { trans } = this;
    const s = Math.max(0, seconds);
    if (s > 0 && s < 0.0995) {
      return trans.__('%1 ms', Math.round(s * 1000));
    }
    if (s < 9.95) {
      const tenths = Math.round(s * 10) / 10;
      return trans.__('%1 s', tenths.toLocaleString(this.locale, { maximumFractionDigits: 1 }));
    }
    const whole = Math.round(s);
    if (whole < MINUTE_S) {
      return trans.__('%1 s', whole);
    }
    if (whole < HOUR_S) {
      const minutes = Math.floor(whole / MINUTE_S);
      const rest = whole % MINUTE_S;
      return rest ? trans.__('%1 min %2 s', minutes, twoDigits(rest)) : trans.__('%1 min', minutes);
    }
    if (whole < DAY_S) {
      const hours = Math.floor(whole / HOUR_S);
      const rest = Math.floor((whole % HOUR_S) / MINUTE_S);
      return rest ? trans.__('%1 h %2 min', hours, twoDigits(rest)) : trans.__('%1 h', hours);
    }
    const days = Math.floor(whole / DAY_S);
    const rest = Math.floor((whole % DAY_S) / HOUR_S);
    return rest ? trans.__('%1 d %2 h', days, rest) : trans.__('%1 d', days);
  }

  /** Return `12 s ago`. */
  ago(seconds: number): string {
    return this.trans.__('%1 ago', this.duration(Math.round(Math.max(0, seconds))));
  }

  /** Return a range of remaining time: `20–40 s`, `6–9 min`, `2–2.5 h`. */
  remaining(lowS: number, highS: number): string {
    const { low, high, unit } = remainingRange(lowS, highS);
    const text = low >= high ? this.tenths(high) : `${this.tenths(low)}${EN_DASH}${this.tenths(high)}`;
    return unit === 's'
      ? this.trans.__('%1 s', text)
      : unit === 'min'
        ? this.trans.__('%1 min', text)
        : this.trans.__('%1 h', text);
  }

  /** Return the same range in words, for screen readers: `6 to 9 minutes`. */
  remainingSpoken(lowS: number, highS: number): string {
    const { low, high, unit } = remainingRange(lowS, highS);
    const text =
      low >= high ? this.tenths(high) : this.trans.__('%1 to %2', this.tenths(low), this.tenths(high));
    return unit === 's'
      ? this.trans._n('%2 second', '%2 seconds', high, text)
      : unit === 'min'
        ? this.trans._n('%2 minute', '%2 minutes', high, text)
        : this.trans._n('%2 hour', '%2 hours', high, text);
  }

  /** Return `14:31` or `2:31 PM`, as the locale has it. */
  clock(atS: number): string {
    return this.clockParts(atS)
      .map(part => part.value)
      .join('');
  }

  /** Return `14:31:07`. Log lines stand in columns, so there is no AM and PM. */
  clockWithSeconds(atS: number): string {
    return new Date(atS * 1000).toLocaleTimeString(this.locale, {
      hour: '2-digit',
      minute: '2-digit',
      second: '2-digit',
      hourCycle: 'h23'
    });
  }

  /** Return `14:52–14:55` or `2:52–2:55 PM`, or one time when both are in the same minute. */
  clockRange(lowS: number, highS: number): string {
    const [low, high] = [this.clock(lowS), this.clock(highS)];
    if (low === high) {
      return low;
    }
    const [lowParts, highParts] = [this.clockParts(lowS), this.clockParts(highS)];
    const half = lowParts.find(part => part.type === 'dayPeriod')?.value;
    const isSameHalf = half !== undefined && highParts.some(part => part.value === half);
    if (isSameHalf && low.endsWith(half)) {
      return `${low.slice(0, -half.length).trimEnd()}${EN_DASH}${high}`;
    }
    return isSameHalf && high.startsWith(half)
      ? `${low}${EN_DASH}${high.slice(half.length).trimStart()}`
      : `${low}${EN_DASH}${high}`;
  }

  private clockParts(atS: number): Intl.DateTimeFormatPart[] {
    const { hour12 } = new Intl.DateTimeFormat(this.locale, { hour: 'numeric' }).resolvedOptions();
    const hour = hour12 ? 'numeric' : '2-digit';
    return new Intl.DateTimeFormat(this.locale, { hour, minute: '2-digit' }).formatToParts(atS * 1000);
  }

  /** Return `today 14:48`, `12 Mar`, and the year if it is another one. */
  day(atS: number, nowS: number): string {
    const date = new Date(atS * 1000);
    const now = new Date(nowS * 1000);
    if (date.toDateString() === now.toDateString()) {
      return this.trans.__('today %1', this.clock(atS));
    }
    return date.toLocaleDateString(this.locale, {
      day: 'numeric',
      month: 'short',
      ...(date.getFullYear() === now.getFullYear() ? {} : { year: 'numeric' })
    });
  }

  /** Return `512 B`, `44.8 MB`. */
  bytes(n: number): string {
    const units = ['B', 'kB', 'MB', 'GB', 'TB'];
    let value = n;
    let unit = 0;
    while (value >= 1000 && unit < units.length - 1) {
      value /= 1000;
      unit += 1;
    }
    const digits = unit === 0 ? 0 : 1;
    const text = value.toLocaleString(this.locale, {
      minimumFractionDigits: digits,
      maximumFractionDigits: digits
    });
    return `${text} ${units[unit]}`;
  }

  /** Return the name of a unit of size: `GPU` or `GPUs`, `CPU slot` or `CPU slots`, `learner` or `learners`. */
  unit(unit: string, n: number): string {
    switch (unit) {
      case 'GPU':
        return this.trans._n('GPU', 'GPUs', n);
      case 'CPU slot':
        return this.trans._n('CPU slot', 'CPU slots', n);
      case 'learner':
        return this.trans._n('learner', 'learners', n);
      default:
        return n === 1 ? unit : `${unit}s`;
    }
  }

  /** Return `1 GPU`, `1,200 learners`. */
  quantity(n: number, unit: string): string {
    return this.trans._p('quantity', '%1 %2', this.count(n), this.unit(unit, n));
  }

  metricValue(kind: MetricKind, value: number): string {
    return kind === 'fraction' && Number.isFinite(value) ? this.percent(value, 1) : this.significant(value);
  }

  /** Return a metric's name as a label: `val_accuracy` as `Accuracy, validation`. */
  metricLabel(name: string): string {
    const words = name
      .replace(/[/._-]+/g, ' ')
      .trim()
      .split(/\s+/);
    const split = words.length > 1 ? this.dataSplit(words[0].toLowerCase()) : '';
    const label = capitalised((split ? words.slice(1) : words).join(' '));
    return split ? this.trans._p('metric', '%1, %2', label, split) : label;
  }

  private dataSplit(word: string): string {
    switch (word) {
      case 'val':
      case 'valid':
        return this.trans._p('metric', 'validation');
      case 'train':
        return this.trans._p('metric', 'train');
      case 'test':
        return this.trans._p('metric', 'test');
      default:
        return '';
    }
  }

  private tenths(n: number): string {
    return n.toLocaleString(this.locale, { maximumFractionDigits: 1 });
  }
}

/** Return a fraction in whole per cent, rounded down: 100 only at the end. */
export function wholePercent(fraction: number): number {
  return fraction >= 1 ? 100 : Math.min(99, Math.floor(fraction * 100 + 1e-9));
}

export function capitalised(text: string): string {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

function twoDigits(n: number): string {
  return String(n).padStart(2, '0');
}

function remainingRange(lowS: number, highS: number): { low: number; high: number; unit: 's' | 'min' | 'h' } {
  if (highS < MINUTE_S) {
    return { low: Math.round(lowS), high: Math.max(1, Math.round(highS)), unit: 's' };
  }
  if (highS < 2 * HOUR_S) {
    return {
      low: Math.floor(lowS / MINUTE_S),
      high: Math.max(1, Math.round(highS / MINUTE_S)),
      unit: 'min'
    };
  }
  return { low: Math.round(lowS / 360) / 10, high: Math.round(highS / 360) / 10, unit: 'h' };
}

export type MetricKind = 'loss' | 'fraction' | 'other';

/** Guess from a metric's name and values how to write it. */
export function metricKind(name: string, values: readonly number[]): MetricKind {
  if (/loss|error|perplexity/i.test(name)) {
    return 'loss';
  }
  if (
    /acc|precision|recall|f1|auc|iou|dice|fraction/i.test(name) &&
    values.every(v => !Number.isFinite(v) || (v >= 0 && v <= 1))
  ) {
    return 'fraction';
  }
  return 'other';
}
