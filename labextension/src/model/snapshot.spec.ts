import { describe, expect, it } from 'vitest';

import * as golden from '../../test/golden';
import { language } from '../../test/language';
import { asBundle, type Point } from '../protocol';
import { stateOfCopy } from './job';
import { blocks, bundleOf, htmlOf, textOf } from './snapshot';

const CONNECTION = {
  kind: 'live' as const,
  receivedS: 0,
  retryS: null,
  stale: false
};

describe('what the notebook keeps of an ended job', () => {
  it('is a bundle that the page can read again', () => {
    const copy = { ...golden.bundle(), job: golden.job('completed') };
    const kept = bundleOf(stateOfCopy(copy, CONNECTION), 'lab');

    expect(asBundle(JSON.parse(JSON.stringify(kept)))).toEqual(kept);
    expect(kept.job.state).toBe('COMPLETED');
  });

  it('holds at most 200 points of a curve', () => {
    const loss = Array.from({ length: 900 }, (_, i): Point => [i, i, i]);
    const state = {
      ...stateOfCopy(golden.bundle(), CONNECTION),
      curves: new Map([['loss', loss]])
    };

    expect(bundleOf(state, 'lab').curves.loss.length).toBeLessThanOrEqual(200);
  });

  it('is a plain table elsewhere: no style, class, script or link, and text stays text', () => {
    const html = htmlOf(language, {
      ...golden.bundle(),
      log: ['<script>alert(1)</script>']
    });

    expect(html).not.toMatch(/<(script|style|a|img)|class=|style=/);
    expect(html).toContain('&lt;script&gt;');
    expect(html).toContain('GPUs');
    expect(html.length).toBeLessThan(8000);
  });

  it('keeps NaN and infinite values and what training found', () => {
    const job = golden.job('completed');
    const notes = [{ code: 'report_not_finite', text: 'loss became NaN at step 1.' }];
    const loss: Point[] = [1, NaN, Infinity, -Infinity].map((v, i) => [i, i, v]);
    const state = {
      ...stateOfCopy({ ...golden.bundle(), job: { ...job, notes } }, CONNECTION),
      curves: new Map([['loss', loss]])
    };
    const read = asBundle(JSON.parse(JSON.stringify(bundleOf(state, 'lab'))))!;

    expect(stateOfCopy(read, CONNECTION).curves.get('loss')).toEqual(loss);
    expect(htmlOf(language, read)).toContain('▁××× 1 → -∞');
    expect(htmlOf(language, read)).toContain('loss became NaN at step 1.');
  });

  it('is one line of text', () => {
    expect(textOf({ ...golden.bundle(), job: golden.job('completed') })).toBe(
      'resnet-48: completed · accuracy 94.1% at epoch 30'
    );
  });

  it('draws curves as blocks', () => {
    const points: Point[] = [0, 1, 2].map(i => [i, i, i]);
    expect(blocks(points)).toBe('▁▅█ 0 → 2');
  });
});
