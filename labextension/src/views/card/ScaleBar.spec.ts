import { cleanup, fireEvent, screen } from '@testing-library/react';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';

import { showCard, stateOf } from '../../../test/card';
import * as golden from '../../../test/golden';
import type { IJobState } from '../../model/job';
import { NO_WISH } from '../../model/wish';
import type { IJobCardProps } from './JobCard';

let called: ReturnType<typeof showCard>['called'];

function show(state: IJobState, more: Partial<IJobCardProps> = {}): HTMLElement {
  const shown = showCard(state, more);
  called = shown.called;
  return shown.card;
}

beforeEach(() => {
  vi.useFakeTimers();
});
afterEach(() => {
  cleanup();
  vi.useRealTimers();
});

describe('the stepper', () => {
  it('moves by one learner and shows what is held beside what is wanted', () => {
    show(stateOf(golden.job('scaling')));
    const number = screen.getByRole('spinbutton', {
      name: 'GPUs of resnet-48'
    });

    expect(number.getAttribute('aria-valuetext')).toBe('2 now, 4 requested');
    fireEvent.click(screen.getByRole('button', { name: 'Add a GPU to resnet-48' }));
    expect(called.scale).toHaveBeenLastCalledWith(5);
    fireEvent.click(screen.getByRole('button', { name: 'Remove a GPU from resnet-48' }));
    expect(called.scale).toHaveBeenLastCalledWith(3);
    fireEvent.click(screen.getByRole('button', { name: 'Stay at 2' }));
    expect(called.scale).toHaveBeenLastCalledWith(2);
  });

  it('follows the keyboard', () => {
    show(stateOf(golden.job('processing')));
    const number = screen.getByRole('spinbutton', {
      name: 'GPUs of resnet-48'
    });
    for (const key of ['ArrowUp', 'ArrowDown', 'Home', 'End', '6', 'Enter']) {
      fireEvent.keyDown(number, { key });
    }

    expect(called.scale.mock.calls.map(c => c[0])).toEqual([5, 3, 1, 8, 6]);
  });

  it('counts devices where a learner has several, and sends learners', () => {
    show(stateOf({ ...golden.job('processing'), gpus_per_learner: 2 }));
    const number = screen.getByRole('spinbutton', {
      name: 'GPUs of resnet-48'
    });

    expect([number.getAttribute('aria-valuenow'), number.getAttribute('aria-valuemax')]).toEqual(['8', '16']);
    fireEvent.keyDown(number, { key: 'ArrowUp' });
    expect(called.scale).toHaveBeenLastCalledWith(5);
  });

  it('stays within its bounds and says why', () => {
    const view = golden.job('processing');
    show(stateOf({ ...view, size: { ...view.size, wish: 8, held: 8 } }));
    const add = screen.getByRole('button', { name: 'Add a GPU to resnet-48' });
    fireEvent.click(add);

    expect(called.scale).not.toHaveBeenCalled();
    expect(add.getAttribute('aria-disabled')).toBe('true');
    expect(screen.getByText('This job requested at most 8.')).toBeDefined();
  });

  it('is off, with the server’s reason, while the server says so', () => {
    show(stateOf(golden.job('halting')));
    fireEvent.click(screen.getByRole('button', { name: 'Add a GPU to resnet-48' }));

    expect(called.scale).not.toHaveBeenCalled();
    expect(screen.getByText('The job is halting')).toBeDefined();
  });

  it('says what more learners brought, where nothing is to be said of the wish', () => {
    const card = show(stateOf(golden.job('processing')));

    expect(card.querySelector('.jp-dlaas-scalebar')?.textContent).toContain('2 → 4: 1.3× faster.');
  });

  it('says what was refused and why', () => {
    const wish = { ...NO_WISH, refusal: 'Queue vision may borrow 1 GPU.', refused: 'size' as const };
    const card = show(stateOf(golden.job('processing'), { wish }));

    expect(card.querySelector('.jp-dlaas-scalebar')?.textContent).toContain(
      'Stayed at 4. Queue vision may borrow 1 GPU.'
    );
  });

  it('says once that the size stayed, where the server says it, too', () => {
    const refusal = 'Stayed at 4. resnet-48 takes 1 to 8 learners.';
    const card = show(stateOf(golden.job('processing'), { wish: { ...NO_WISH, refusal, refused: 'size' } }));

    expect(card.querySelector('.jp-dlaas-scalebar .jp-dlaas-grow')?.textContent?.trim()).toBe(refusal);
  });
});

describe('the Auto switch', () => {
  const auto = (): HTMLElement => screen.getByRole('switch', { name: 'Auto' });

  it('lets the size follow the speed, and gives the choice back', () => {
    const view = golden.job('processing');
    show(stateOf(view));
    expect(auto().getAttribute('aria-checked')).toBe('false');
    fireEvent.click(auto());
    expect(called.setElastic).toHaveBeenLastCalledWith('auto');
    cleanup();

    const card = show(stateOf({ ...view, elastic: 'auto' }));
    expect(card.querySelector('.jp-dlaas-scalebar')?.textContent).toContain(
      'Auto chose 4. 2 → 4: 1.3× faster.'
    );
    fireEvent.click(auto());
    expect(called.setElastic).toHaveBeenLastCalledWith('manual');
  });

  it('shows the press at once, and is off as soon as a size is wished for', () => {
    const view = golden.job('processing');
    show(stateOf(view, { wish: { ...NO_WISH, elastic: 'auto' } }));
    expect(auto().getAttribute('aria-checked')).toBe('true');
    cleanup();

    show(stateOf({ ...view, elastic: 'auto' }, { wish: { ...NO_WISH, learners: 3 } }));
    expect(auto().getAttribute('aria-checked')).toBe('false');
  });

  it('says why it was refused', () => {
    const refusal =
      'resnet-48 stays manual: auto measures the steps of run.batches, which this program does not use.';
    const card = show(stateOf(golden.job('processing'), { wish: { ...NO_WISH, refusal, refused: 'auto' } }));

    expect(card.querySelector('.jp-dlaas-scalebar')?.textContent).toContain(`Auto stays off. ${refusal}`);
  });

  it('is left out where there is nothing to choose, and cannot be pressed while the job halts', () => {
    const view = golden.job('processing');
    show(stateOf({ ...view, size: { ...view.size, min: 4, max: 4 } }));
    expect(screen.queryByRole('switch', { name: 'Auto' })).toBeNull();
    cleanup();

    show(stateOf(golden.job('halting')));
    fireEvent.click(auto());
    expect(called.setElastic).not.toHaveBeenCalled();
    expect(auto().title).toBe('the job is halting');
  });
});
