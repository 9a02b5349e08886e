import { cleanup, fireEvent, render, screen } from '@testing-library/react';
import * as React from 'react';
import { afterEach, describe, expect, it, vi } from 'vitest';

import { stateOfCopy } from '../src/model/job';
import type { IJobState } from '../src/model/job';
import type { IInterruption, IJobView, Point } from '../src/protocol';
import { JobCard } from '../src/views/card';
import { chart, smooth } from '../src/views/curves';
import * as golden from './golden';

function stateOf(view: IJobView, more: Partial<IJobState>): IJobState {
  const connection = { kind: 'live' as const, heardS: 2000, retryS: null, stale: false };
  return { ...stateOfCopy({ ...golden.bundle(), job: view }, connection), live: true, ...more };
}

function show(state: IJobState, nowS = 2000): HTMLElement {
  const handlers = {
    scale: vi.fn(),
    setElastic: vi.fn(),
    act: vi.fn(),
    retryConnection: vi.fn(),
    allow: vi.fn(),
    copyReport: vi.fn(),
    openMenu: vi.fn()
  };
  render(<JobCard state={state} handlers={handlers} nowS={nowS} allowed />);
  return screen.getByRole('region', { name: `Job ${state.view.id}` });
}

afterEach(cleanup);

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
    const drawn = chart(state(back))!;
    const [loss] = drawn.tracks;
    const size = drawn.tracks.at(-1)!;

    expect(loss.line.y).toEqual([1, 1, 1, 1, null, 1, 1]);
    expect(size.line.x).toEqual([0, 40, 60, 70]);
    expect(size.line.y).toEqual([2, 0, 1, 1]);
    expect(drawn.marks.map(mark => [mark.text, mark.cause])).toEqual([
      ['2 → 0', 'preempted'],
      ['0 → 1', 'back']
    ]);
  });

  it('hold no devices while the job waits, and say why', () => {
    const queued = state(preempted, { state: 'QUEUED', size: { ...held, held: 0 }, tone: 'warn' });
    const size = chart(queued)!.tracks.at(-1)!;

    expect([size.value, size.line.y.at(-1)]).toEqual(['0', 0]);
    expect(show(queued).querySelector('.jp-dlaas-banner')?.textContent).toBe(preempted.text);
  });

  it('leave a banner for a while after the job trains again', () => {
    const card = show(state(back), 1070);
    expect(card.querySelector('.jp-dlaas-banner')?.textContent).toBe(back.text);
    cleanup();

    expect(show(state(back), 9000).querySelector('.jp-dlaas-banner')).toBeNull();
  });

  it('mark a restart on the same devices without a size of 0', () => {
    const restart = { ...back, by: 'lost', at_s: 1050, held_s: 1050, to_s: 1052, before: 1, after: 1 };
    const drawn = chart(state(restart))!;

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
    const [loss] = chart(noisy)!.tracks;
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
