import { describe, expect, it } from 'vitest';

import type { IMetricRecord, IMetricsMessage, Point, WireNumber } from '../protocol';
import { Metrics, thin } from './metrics';

function frame(from: number, to: number, records: IMetricRecord[]): IMetricsMessage {
  return { type: 'metrics', job: 'a-1', from, to, records };
}

const at = (step: number, loss: number): IMetricRecord => ({
  t: step,
  step,
  values: { loss }
});

describe('the curves', () => {
  it('know where they came from', () => {
    const metrics = new Metrics();
    metrics.take(frame(0, 10, [{ ...at(1, 3), source: 'log' }]));
    const first = metrics.sources;
    metrics.take(frame(10, 20, [{ t: 2, step: 2, values: { acc: 0.5 }, source: 'run' }]));

    expect([...first]).toEqual([['loss', 'log']]);
    expect([...metrics.sources]).toEqual([
      ['loss', 'log'],
      ['acc', 'run']
    ]);
  });

  it('take back what was logged after the step of a rewind', () => {
    const metrics = new Metrics();
    metrics.take(frame(0, 10, [at(1, 3), at(2, 2), at(3, 1)]));
    metrics.take(frame(10, 20, [{ t: 9, rewind: 1 }, at(2, 1.9)]));

    expect(metrics.curves.get('loss')).toEqual([
      [1, 1, 3],
      [2, 2, 1.9]
    ]);
  });

  it('take each byte range once and tell of a hole', () => {
    const metrics = new Metrics();
    metrics.take(frame(0, 10, [at(1, 3)]));

    expect(metrics.take(frame(0, 10, [at(1, 3)]))).toBe('old');
    expect(metrics.take(frame(20, 30, [at(3, 1)]))).toBe('gap');
    expect(metrics.offset).toBe(10);
    expect(metrics.curves.get('loss')).toHaveLength(1);
  });

  it('hold NaN and infinite values, also of older files', () => {
    const metrics = new Metrics();
    const values: WireNumber[] = ['NaN', 'Infinity', '-Infinity', null, 1];
    metrics.take(
      frame(
        0,
        10,
        values.map((loss, i) => ({ t: i, step: i, values: { loss } }))
      )
    );

    expect(metrics.curves.get('loss')?.map(p => p[2])).toEqual([NaN, Infinity, -Infinity, NaN, 1]);
  });

  it('stay small and keep their spikes', () => {
    const metrics = new Metrics(100);
    const records = Array.from({ length: 5000 }, (_, i) => at(i, i === 2500 ? 99 : 1));
    metrics.take(frame(0, 10, records));
    const points = metrics.curves.get('loss') ?? [];

    expect(points.length).toBeLessThanOrEqual(201);
    expect(Math.max(...points.map(p => p[2]))).toBe(99);
  });
});

describe('thinning', () => {
  it('keeps order', () => {
    const points: Point[] = [5, 1, 9, 3, 2, 2, 8, 0].map((v, i) => [i, i, v]);

    expect(thin(points).map(p => p[0])).toEqual([1, 2, 6, 7]);
  });

  it('keeps the first value that is not finite', () => {
    const points: Point[] = [1, NaN, Infinity, 2, NaN, NaN, NaN, NaN].map((v, i) => [i, i, v]);

    expect(thin(points).map(p => p[0])).toEqual([0, 1, 3, 4]);
  });
});
