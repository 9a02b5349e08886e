import { asNumber, type IMetricRecord, type IMetricsMessage, type Point, type WireNumber } from '../protocol';
import type { Taken } from './log';

/** Halve a curve: of each four points the lowest, the highest and the first that is not finite stay. */
export function thin(points: Point[]): Point[] {
  const out: Point[] = [];
  for (let i = 0; i < points.length; i += 4) {
    const group = points.slice(i, i + 4);
    if (group.length <= 2) {
      out.push(...group);
      continue;
    }
    const finite = group.filter(p => Number.isFinite(p[2]));
    const low = finite.reduce<Point | undefined>((a, p) => (a && a[2] <= p[2] ? a : p), undefined);
    const high = finite.reduce<Point | undefined>((a, p) => (a && a[2] >= p[2] ? a : p), undefined);
    const odd = group.find(p => !Number.isFinite(p[2]));
    out.push(...group.filter(p => p === low || p === high || p === odd));
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
    if (!this.cachedCurves) {
      this.cachedCurves = new Map(
        [...this.points].filter(([, p]) => p.length > 0).map(([name, p]) => [name, p.slice()])
      );
    }
    return this.cachedCurves;
  }

  /** Source of each curve's last points: run, callback, tensorboard, log; a new map after each change. */
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
    this.cachedCurves = null;
    return 'new';
  }

  private add(t: number, step: number, values: { [metric: string]: WireNumber }): void {
    for (const [name, value] of Object.entries(values)) {
      const points = this.points.get(name) ?? [];
      points.push([step, t, asNumber(value)]);
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
  private cachedCurves: ReadonlyMap<string, readonly Point[]> | null = null;
}
