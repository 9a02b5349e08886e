/** Numbers and times as people read them; the rules are those of the design's section "Numbers". */
const EN_DASH = '–';

let locale: string | undefined;

/** Lab's language, where it has one that the browser knows. */
export function setLocale(code: string | undefined): void {
  try {
    locale = code ? new Intl.Locale(code.replace('_', '-')).toString() : undefined;
  } catch {
    locale = undefined;
  }
}

export function count(n: number): string {
  return new Intl.NumberFormat(locale, { maximumFractionDigits: 0 }).format(n);
}

export function significant(n: number, digits = 3): string {
  if (!Number.isFinite(n)) {
    return Number.isNaN(n) ? 'NaN' : n > 0 ? '∞' : '−∞';
  }
  if (n !== 0 && (Math.abs(n) < 1e-4 || Math.abs(n) >= 1e7)) {
    return n.toExponential(digits - 1);
  }
  if (Math.abs(n) >= 10 ** digits) {
    return count(Math.round(n));
  }
  const format = new Intl.NumberFormat(locale, {
    minimumSignificantDigits: n === 0 ? 1 : digits,
    maximumSignificantDigits: digits
  });
  return format.format(n);
}

export function percent(fraction: number, decimals = 0): string {
  const format = new Intl.NumberFormat(locale, {
    style: 'percent',
    minimumFractionDigits: decimals,
    maximumFractionDigits: decimals
  });
  return format.format(fraction);
}

/** `0.3 s`, `38 ms`, `41 s`, `3 min 20 s`, `2 h 05 min`, `3 d 4 h`: two units at most. */
export function duration(seconds: number): string {
  const s = Math.max(0, seconds);
  if (s < 0.1) {
    return `${Math.round(s * 1000)} ms`;
  }
  if (s < 9.95) {
    return `${(Math.round(s * 10) / 10).toLocaleString(locale, { maximumFractionDigits: 1 })} s`;
  }
  const whole = Math.round(s);
  if (whole < 60) {
    return `${whole} s`;
  }
  if (whole < 3600) {
    const rest = whole % 60;
    return rest ? `${Math.floor(whole / 60)} min ${String(rest).padStart(2, '0')} s` : `${whole / 60} min`;
  }
  if (whole < 86_400) {
    const minutes = Math.floor((whole % 3600) / 60);
    return minutes
      ? `${Math.floor(whole / 3600)} h ${String(minutes).padStart(2, '0')} min`
      : `${Math.floor(whole / 3600)} h`;
  }
  const hours = Math.floor((whole % 86_400) / 3600);
  return hours ? `${Math.floor(whole / 86_400)} d ${hours} h` : `${Math.floor(whole / 86_400)} d`;
}

/** How long ago, to the second: `12 s ago`. */
export function ago(seconds: number): string {
  const whole = Math.max(0, Math.round(seconds));
  return whole < 10 ? `${whole} s ago` : `${duration(whole)} ago`;
}

/** A range of times left: `6–9 min`; under a minute in seconds. */
export function left(lowS: number, highS: number): string {
  if (highS < 60) {
    return range(Math.round(lowS), Math.max(1, Math.round(highS)), ' s');
  }
  if (highS < 7200) {
    return range(Math.floor(lowS / 60), Math.max(1, Math.round(highS / 60)), ' min');
  }
  return range(Math.round(lowS / 360) / 10, Math.round(highS / 360) / 10, ' h');
}

function range(low: number, high: number, unit: string): string {
  return low >= high ? `${high}${unit}` : `${low}${EN_DASH}${high}${unit}`;
}

/** The same range for a screen reader. */
export function leftSpoken(lowS: number, highS: number): string {
  return left(lowS, highS).replace(EN_DASH, ' to ').replace(' min', ' minutes').replace(' s', ' seconds');
}

export function clock(atS: number, seconds = false): string {
  return new Date(atS * 1000).toLocaleTimeString(locale, {
    hour: '2-digit',
    minute: '2-digit',
    // log lines stand in columns: no AM and PM there
    ...(seconds ? { second: '2-digit', hourCycle: 'h23' as const } : {})
  });
}

/** `14:52–14:55`, or one time when both fall into the same minute. */
export function clockRange(lowS: number, highS: number): string {
  const low = clock(lowS);
  const high = clock(highS);
  return low === high ? low : `${low}${EN_DASH}${high}`;
}

/** `today 14:48`, `12 Mar`, and with the year when it is another one. */
export function day(atS: number, nowS: number): string {
  const then = new Date(atS * 1000);
  const now = new Date(nowS * 1000);
  if (then.toDateString() === now.toDateString()) {
    return `today ${clock(atS)}`;
  }
  return then.toLocaleDateString(locale, {
    day: 'numeric',
    month: 'short',
    ...(then.getFullYear() === now.getFullYear() ? {} : { year: 'numeric' })
  });
}

export function bytes(n: number): string {
  const units = ['B', 'kB', 'MB', 'GB', 'TB'];
  let value = n;
  let unit = 0;
  while (value >= 1000 && unit < units.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${unit === 0 ? value : significant(value)} ${units[unit]}`;
}

/** Device memory, in the unit in which devices are sold: `21.4 / 40 GiB`. */
export function gibibytes(n: number): string {
  const value = n / 2 ** 30;
  return value >= 100 ? String(Math.round(value)) : (Math.round(value * 10) / 10).toString();
}

/** `GPU` or `GPUs`, `CPU slot` or `CPU slots`. */
export function units(unit: string, n: number): string {
  return n === 1 ? unit : `${unit}s`;
}

/** What kind of number a metric is, told by its name and values. */
export type MetricKind = 'loss' | 'fraction' | 'other';

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

export function metricValue(kind: MetricKind, value: number): string {
  return kind === 'fraction' && Number.isFinite(value) ? percent(value, 1) : significant(value);
}

/** `val_accuracy` as a label: `Accuracy, validation`. */
export function metricLabel(name: string): string {
  const words = name
    .replace(/[/._-]+/g, ' ')
    .trim()
    .split(/\s+/);
  const first = words[0]?.toLowerCase();
  const part =
    first === 'val' || first === 'valid' ? 'validation' : first === 'train' || first === 'test' ? first : '';
  const rest = part && words.length > 1 ? words.slice(1) : words;
  const label = rest.join(' ');
  const shown = label.charAt(0).toUpperCase() + label.slice(1);
  return part && words.length > 1 ? `${shown}, ${part}` : shown;
}
