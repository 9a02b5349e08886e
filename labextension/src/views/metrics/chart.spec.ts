import { cleanup, fireEvent, screen, within } from '@testing-library/react';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';

import { showCard, stateOf } from '../../../test/card';
import * as golden from '../../../test/golden';
import { language } from '../../../test/language';
import type { IJobState } from '../../model/job';
import type { IInterruption, IJobView, Point } from '../../protocol';
import type { IJobCardProps } from '../card/JobCard';
import { chart } from './chart';
import { smooth } from './tracks';

const show = (state: IJobState, more: Partial<IJobCardProps> = {}): HTMLElement => showCard(state, more).card;

beforeEach(() => {
  vi.useFakeTimers();
});
afterEach(() => {
  cleanup();
  vi.useRealTimers();
});

describe('the throughput', () => {
  it('is drawn in the unit of its number', () => {
    const points: Point[] = [1, 2, 3, 4, 5, 6].map(i => [i * 10, 100 + i, 1]);
    const view = { ...golden.job('processing'), started_s: 100 };
    const progress = { ...view.progress!, steps_per_s: 10, samples_per_s: 640 };
    const rate = chart(
      language,
      stateOf(view, { progress, curves: new Map([['loss', points]]) })
    )!.tracks.find(t => t.key === 'rate')!;

    expect([rate.value, rate.unit, rate.high]).toEqual(['640', 'samples/s', 640]);
  });

  it('counts points that were recorded at once as one, and shortens its axis', () => {
    const burst = Array.from({ length: 200 }, (_, i): Point => [i, 103 + i / 1e5, 1]);
    const steady = Array.from({ length: 100 }, (_, i): Point => [199 + 2000 * (i + 1), 104 + i, 1]);
    const view = { ...golden.job('processing'), started_s: 100 };
    const progress = { ...view.progress!, steps_per_s: 2000, samples_per_s: null };
    const rate = chart(
      language,
      stateOf(view, { progress, curves: new Map([['loss', [...burst, ...steady]]]) })
    )!.tracks.find(t => t.key === 'rate')!;

    expect(Math.max(...rate.line.y.map(Number))).toBeLessThan(2010);
    expect(rate.range).toEqual(['2K', '0']);
  });
});

describe('values that are NaN or infinite', () => {
  const shown = (...values: number[]) => {
    const points: Point[] = values.map((v, i) => [i * 10, 100 + i, v]);
    const view = { ...golden.job('processing'), started_s: 100 };
    return chart(language, stateOf(view, { curves: new Map([['loss', points]]) }))!.tracks[0];
  };

  it('are a hole in the line, marked from the step at which they begin', () => {
    const track = shown(3, 2, NaN, Infinity, 1, Infinity);

    expect(track.line.y).toEqual([3, 2, null, null, 1, null]);
    expect(track.gaps).toEqual([
      { from: 2, to: 3, text: 'NaN from step 20' },
      { from: 5, to: 5, text: '∞ from step 50' }
    ]);
    expect([track.value, track.low, track.high]).toEqual(['∞', 0, 3]);
    expect(track.line.odd?.get(2)).toBeNaN();
  });

  it('make a curve of their own where nothing else was logged', () => {
    const track = shown(NaN, NaN);

    expect([track.value, track.gaps.length, track.low < track.high]).toEqual(['NaN', 1, true]);
  });

  it('stand on the card as a report, apart from the notes', () => {
    const text = 'loss became NaN at step 20.';
    const notes = [
      { code: 'report_not_finite', text },
      { code: 'warning', text: 'Another note.' }
    ];
    const card = show(stateOf({ ...golden.job('completed'), notes }));

    expect(within(card).getByText(text)).toBeTruthy();
    expect(within(card).getByText('Another note.')).toBeTruthy();
  });
});

describe('a curve', () => {
  it.each([
    ['log', 'Loss, 0.250, from the log'],
    ['tensorboard', 'Loss, 0.250, from TensorBoard'],
    ['run', 'Loss, 0.250'],
    ['callback', 'Loss, 0.250']
  ])('that comes from "%s" is called %s', (source, said) => {
    const curves = new Map([
      [
        'loss',
        [
          [1, 100, 0.5],
          [2, 101, 0.25]
        ] as Point[]
      ]
    ]);
    const card = show(stateOf(golden.job('processing'), { curves, sources: new Map([['loss', source]]) }));

    expect(within(card).getByRole('img', { name: said })).toBeTruthy();
    expect(within(card).queryAllByText(/^from the log$/)).toHaveLength(source === 'log' ? 1 : 0);
  });
});

describe('changes of size', () => {
  const at = (...times: number[]): IJobState => {
    const view = golden.job('processing');
    const points = Array.from({ length: 101 }, (_, i): Point => [i, 1000 + i, 1]);
    const resizes = times.map((s, i) => ({
      at_s: 1000 + s,
      step: s,
      before: 1 + (i % 2),
      after: 2 - (i % 2),
      by: 'you',
      idle_s: 0.02 + i / 1000
    }));
    return stateOf(
      { ...view, started_s: 1000, resizes, interruptions: [], progress: null },
      {
        progress: null,
        curves: new Map([['loss', points]])
      }
    );
  };

  it('are lines, each; those that would touch share a flag, and none is left out', () => {
    const drawn = chart(language, at(10, 12, 15, 40, 60))!;

    expect(drawn.marks.map(mark => Math.round(mark.x * 100))).toEqual([10, 12, 15, 40, 60]);
    expect(drawn.flags.map(flag => flag.text)).toEqual(['3 changes', '2 → 1', '1 → 2']);
    expect(drawn.flags.flatMap(flag => flag.marks)).toEqual(drawn.marks);
    expect(drawn.flags.map(flag => flag.cause)).toEqual(['', 'you', 'you']);
    expect(chart(language, at(10, 22))!.flags.map(flag => flag.cause)).toEqual(['', '']);
  });

  it('tell when pressed each pause in a list, and fold with Escape', () => {
    show(at(10, 12, 40));
    const button = screen.getByRole('button', { name: '2 changes: 1 → 2, 2 → 1' });
    fireEvent.click(button);
    const told = within(screen.getByRole('list', { name: 'What changed' })).getAllByRole('listitem');

    expect(button.getAttribute('aria-expanded')).toBe('true');
    expect(told.map(item => item.textContent?.replace(/at [\d:]+/, 'then'))).toEqual([
      '1 → 2, you, then, step 10, paused for 20 ms',
      '2 → 1, you, then, step 12, paused for 21 ms'
    ]);
    fireEvent.keyDown(button, { key: 'Escape' });
    expect(button.getAttribute('aria-expanded')).toBe('false');
    expect(screen.queryByRole('list', { name: 'What changed' })).toBeNull();
  });
});

describe('interruptions', () => {
  const preempted: IInterruption = {
    at_s: 1040,
    step: 40,
    before: 2,
    by: 'preempted',
    text: 'Preempted: bert-2 has priority.',
    held_s: null,
    to_s: null,
    after: null
  };
  const back = {
    ...preempted,
    held_s: 1060,
    to_s: 1062,
    after: 1,
    text: 'Preempted. 1 learner trains again.'
  };
  const view: IJobView = { ...golden.job('processing'), started_s: 1000, resizes: [], progress: null };
  const held = { ...view.size, held: 1, wish: 1 };
  const curve = (...times: number[]): Map<string, Point[]> =>
    new Map([['loss', times.map((t): Point => [t, 1000 + t, 1])]]);
  const state = (one: IInterruption, more: Partial<typeof view> = {}): IJobState =>
    stateOf(
      { ...view, size: held, ...more, interruptions: [one] },
      { progress: null, curves: curve(10, 20, 30, 39, 63, 70) }
    );

  it('are gaps in the curves, a size of 0, and marks', () => {
    const drawn = chart(language, state(back))!;
    const [loss] = drawn.tracks;
    const size = drawn.tracks.at(-1)!;

    expect(loss.line.y).toEqual([1, 1, 1, 1, null, 1, 1]);
    expect(size.line.x).toEqual([0, 40, 60, 70]);
    expect(size.line.y).toEqual([2, 0, 1, 1]);
    expect(drawn.marks.map(mark => [mark.text, mark.cause])).toEqual([
      ['2 → 0', 'preempted'],
      ['0 → 1', 'resumed']
    ]);
  });

  it('hold no devices while the job waits, and say why', () => {
    const queued = state(preempted, { state: 'QUEUED', size: { ...held, held: 0 }, tone: 'warn' });
    const size = chart(language, queued)!.tracks.at(-1)!;

    expect([size.value, size.line.y.at(-1)]).toEqual(['0', 0]);
    expect(show(queued, { nowS: 2000 }).querySelector('.jp-dlaas-banner')?.textContent).toBe(preempted.text);
  });

  it('leave a banner for a while after the job trains again', () => {
    const card = show(state(back), { nowS: 1070 });
    expect(card.querySelector('.jp-dlaas-banner')?.textContent).toBe(back.text);
    cleanup();

    expect(show(state(back), { nowS: 9000 }).querySelector('.jp-dlaas-banner')).toBeNull();
  });

  it('mark a restart on the same devices without a size of 0', () => {
    const restart = { ...back, by: 'lost', at_s: 1050, held_s: 1050, to_s: 1052, before: 1, after: 1 };
    const drawn = chart(language, state(restart))!;

    expect(drawn.marks.map(mark => [mark.text, mark.cause])).toEqual([['restart', 'lost']]);
    expect(drawn.tracks.at(-1)!.line.y).toEqual([1, 1]);
  });
});

describe('a noisy curve', () => {
  const points = Array.from({ length: 80 }, (_, i): Point => [i, 1000 + i, i % 2 ? 3 : 1]);
  const noisy = stateOf(
    { ...golden.job('processing'), started_s: 1000, interruptions: [] },
    { curves: new Map([['loss', points]]) }
  );

  it('is drawn as it is; its running mean is named and can be switched off', () => {
    const [loss] = chart(language, noisy)!.tracks;
    expect(loss.line.y.slice(0, 3)).toEqual([1, 3, 1]);
    expect(loss.smoothed).not.toBeNull();

    show(noisy);
    const button = screen.getByRole('button', { name: 'Running mean' });
    expect(button.getAttribute('aria-pressed')).toBe('true');
    fireEvent.click(button);
    expect(button.getAttribute('aria-pressed')).toBe('false');
  });

  it('has a mean that is not biased by its first value', () => {
    const mean = smooth([1, 3, 1, 3]);

    expect(mean[0]).toBeCloseTo(1);
    expect(mean[1]).toBeCloseTo((1 * (2 / 3) + 3) / (2 / 3 + 1));
    expect(smooth([5, null, 1])).toEqual([5, null, expect.closeTo(1)]);
  });
});
