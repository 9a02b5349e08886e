import type { IMetricRecord, IMetricsMessage, Point } from '../protocol';
import type { Taken } from './log';

/** Halve a curve, keeping of each four points the lowest and the highest, so that spikes stay. */
export function thin(points: Point[]): Point[] {
  const out: Point[] = [];
  for (let i = 0; i < points.length; i += 4) {
    const group = points.slice(i, i + 4);
    if (group.length <= 2) {
      out.push(...group);
      continue;
    }
    let low = 0;
    let high = 0;
    group.forEach((p, n) => {
      if (p[2] < group[low][2]) {
        low = n;
      }
      if (p[2] > group[high][2]) {
        high = n;
      }
    });
    const [a, b] = low < high ? [low, high] : [high, low];
    out.push(group[a]);
    if (b !== a) {
      out.push(group[b]);
    }
  }
  return out;
}

/**
 * The curves of one job, from byte ranges of its metrics file.
 *
 * A rewind takes back what was logged for later steps, so a restart from a checkpoint draws no step twice.
 */
export class Metrics {
  constructor(private readonly limit = 1000) {}

  /** Bytes of the metrics file that were taken. */
  offset = 0;

  /** Points by metric, in the order in which metrics were first logged; a new map after each change. */
  get curves(): ReadonlyMap<string, readonly Point[]> {
    if (!this.shown) {
      this.shown = new Map(
        [...this.points].filter(([, p]) => p.length > 0).map(([name, p]) => [name, p.slice()])
      );
    }
    return this.shown;
  }

  /** Where each curve came from last: run, callback, tensorboard, log; a new map after each change. */
  get sources(): ReadonlyMap<string, string> {
    return this.from;
  }

  take(frame: IMetricsMessage): Taken {
    if (frame.to <= this.offset) {
      return 'old';
    }
    if (frame.from !== this.offset) {
      return 'gap';
    }
    this.offset = frame.to;
    for (const record of frame.records) {
      if (typeof record.rewind === 'number') {
        this.rewind(record.rewind);
      } else {
        this.add(record.t, record.step ?? 0, record.values ?? {});
        this.note(record);
      }
    }
    this.shown = null;
    return 'new';
  }

  private add(t: number, step: number, values: { [metric: string]: number }): void {
    for (const [name, value] of Object.entries(values)) {
      if (typeof value !== 'number' || !Number.isFinite(value)) {
        continue; // a diverged loss is a hole in the curve, never a zero
      }
      const points = this.points.get(name) ?? [];
      points.push([step, t, value]);
      this.points.set(name, points.length > 2 * this.limit ? thin(points) : points);
    }
  }

  private note(record: IMetricRecord): void {
    const { source } = record;
    const names = Object.keys(record.values ?? {}).filter(name => this.from.get(name) !== source);
    if (source && names.length) {
      this.from = new Map([...this.from, ...names.map((name): [string, string] => [name, source])]);
    }
  }

  private rewind(step: number): void {
    for (const [name, points] of this.points) {
      this.points.set(
        name,
        points.filter(p => p[0] <= step)
      );
    }
  }

  private from: ReadonlyMap<string, string> = new Map();
  private points = new Map<string, Point[]>();
  private shown: ReadonlyMap<string, readonly Point[]> | null = null;
}
