import { cleanup, fireEvent, screen, within } from '@testing-library/react';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';

import { NOW_S, showCard, stateOf } from '../../../test/card';
import * as golden from '../../../test/golden';
import type { IJobState } from '../../model/job';
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

describe('the card', () => {
  it.each([
    ['queued', 'Queued', ['Halt', 'Cancel']],
    ['deploying', 'Deploying', ['Halt', 'Cancel']],
    ['processing', 'Processing', ['Halt', 'Cancel']],
    ['scaling', 'Processing · scaling 2 → 4', ['Halt', 'Cancel']],
    ['halting', 'Processing · halting', ['Cancel']],
    ['halted', 'Halted', ['Resume', 'Cancel']],
    ['completed', 'Completed', ['Retry']],
    ['failed', 'Failed · your code', []],
    ['cancelled', 'Cancelled', ['Retry']]
  ])('%s: shows the state and exactly the actions that the server allows', (name, label, actions) => {
    const view = golden.job(name);
    const card = show(stateOf(view));
    const group = within(card).getByRole('group', {
      name: `Actions for ${view.id}`
    });
    const buttons = within(group).getAllByRole('button');

    expect(card.dataset.status).toBe(view.state.toLowerCase());
    expect(within(card).getByRole('heading', { name: view.id })).toBeDefined();
    expect(card.querySelector('.jp-dlaas-status')?.textContent).toBe(label);
    expect(buttons.map(b => b.getAttribute('aria-label') ?? b.textContent)).toEqual([
      ...actions,
      `More actions for ${view.id}`
    ]);
  });

  it('says how far training is, also to a screen reader', () => {
    show(stateOf(golden.job('processing')));

    expect(screen.getByRole('progressbar', { name: 'Progress' }).getAttribute('aria-valuetext')).toBe(
      'Epoch 8 of 30, 24 percent, 27 to 30 minutes left'
    );
    expect(screen.getByText('27–30 min left')).toBeDefined();
  });

  it('shows one track per metric and the resizes as marks', () => {
    const card = show(stateOf(golden.job('processing')));
    const metrics = within(card).getByRole('group', { name: 'Metrics' });

    expect(
      within(metrics)
        .getAllByRole('img')
        .map(i => i.getAttribute('aria-label'))
    ).toEqual(['Loss, 0.437', 'Accuracy, 86.1%', 'GPUs, 4']);
    expect(within(metrics).getByRole('button', { name: '2 → 4, you' }).title).toContain('paused for 38 ms');
  });

  it('cancels in two steps', () => {
    show(stateOf(golden.job('processing')));
    fireEvent.click(screen.getByRole('button', { name: 'Cancel' }));
    expect(called.act).not.toHaveBeenCalled();

    fireEvent.click(screen.getByRole('button', { name: 'Keep' }));
    fireEvent.click(screen.getByRole('button', { name: 'Cancel' }));
    fireEvent.click(screen.getByRole('button', { name: 'Cancel job' }));

    expect(called.act).toHaveBeenCalledExactlyOnceWith('cancel');
  });

  it('cancels at once what ran for less than a minute', () => {
    show(stateOf({ ...golden.job('processing'), started_s: NOW_S - 20 }));
    fireEvent.click(screen.getByRole('button', { name: 'Cancel' }));

    expect(called.act).toHaveBeenCalledExactlyOnceWith('cancel');
  });

  it('halts at once what writes checkpoints', () => {
    show(stateOf(golden.job('processing')));
    fireEvent.click(screen.getByRole('button', { name: 'Halt' }));

    expect(called.act).toHaveBeenCalledExactlyOnceWith('halt');
  });

  it('asks before it halts a loop that would start over', () => {
    const view = golden.job('processing');
    const lost = 'It has run no training loop that writes checkpoints, so it starts over when resumed.';
    const actions = view.actions.map(a => (a.id === 'halt' ? { ...a, confirm: lost } : a));
    show(stateOf({ ...view, actions }));
    fireEvent.click(screen.getByRole('button', { name: 'Halt' }));
    expect(called.act).not.toHaveBeenCalled();
    expect(screen.getByRole('alert').textContent).toBe(lost);
    expect(screen.queryByRole('button', { name: 'Cancel' })).toBeNull();

    fireEvent.click(screen.getByRole('button', { name: 'Keep' }));
    expect(screen.queryByText(lost)).toBeNull();
    fireEvent.click(screen.getByRole('button', { name: 'Halt' }));
    fireEvent.click(screen.getByRole('button', { name: 'Halt job' }));

    expect(called.act).toHaveBeenCalledExactlyOnceWith('halt');
  });

  it('claims a checkpoint of a halted job only where there is one', () => {
    const halted = golden.job('halted');
    show(stateOf(halted));
    expect(screen.getByText('Checkpoint')).toBeTruthy();
    cleanup();

    show(stateOf({ ...halted, checkpoint_step: null }));
    expect(screen.queryByText('Checkpoint')).toBeNull();
  });

  it('shows what a job waits for, and halts and resumes', () => {
    show(stateOf(golden.job('queued')));
    expect(screen.getByText('4 GPUs at once; 2 are free. bert-47 holds 2.')).toBeDefined();
    cleanup();

    show(stateOf(golden.job('halted')));
    fireEvent.click(screen.getByRole('button', { name: 'Resume' }));
    expect(called.act).toHaveBeenCalledExactlyOnceWith('resume');
  });
});

describe('a failure', () => {
  it('says what, where and what to do, in this order', () => {
    const card = show(stateOf(golden.job('failed')));
    const alert = within(card).getByRole('alert');

    expect([...alert.querySelectorAll('dt')].map(t => t.textContent)).toEqual([
      'What',
      'Where',
      'What to do'
    ]);
    expect(alert.textContent).toContain('RuntimeError: mat1 and mat2 shapes');
    expect(alert.textContent).toContain('Raised by 4 learners at step 1,203; shown once.');
    expect(alert.querySelector('[data-tone=bad]')?.textContent).toBe('14        return self.head(x)');
  });

  it('offers the cell, the retry and the report', () => {
    show(stateOf(golden.job('failed')));
    fireEvent.click(screen.getByRole('button', { name: 'Go to cell [5]' }));
    fireEvent.click(screen.getByRole('button', { name: 'Retry' }));
    fireEvent.click(screen.getByRole('button', { name: 'Copy report' }));

    expect(called.goToCell).toHaveBeenCalledTimes(1);
    expect(called.act).toHaveBeenCalledExactlyOnceWith('retry');
    expect(called.copyReport).toHaveBeenCalledTimes(1);
  });
});

describe('a card without a word from the server', () => {
  const stale = {
    kind: 'lost' as const,
    receivedS: NOW_S - 12,
    retryS: NOW_S + 4,
    stale: true
  };

  it('says so, keeps its state and stops offering', () => {
    const card = show(stateOf(golden.job('processing'), { connection: stale }));
    fireEvent.click(screen.getByRole('button', { name: /^Halt/ }));

    expect(card.dataset.status).toBe('processing');
    expect(card.querySelector('.jp-dlaas-banner')?.textContent).toContain(
      'Last update 12 s ago. The job continues without this page. Trying again in 4 s.'
    );
    expect(called.act).not.toHaveBeenCalled();
    fireEvent.click(screen.getByRole('button', { name: 'Try now' }));
    expect(called.retryConnection).toHaveBeenCalledTimes(1);
  });

  it('asks first in a notebook that is not trusted', () => {
    show(stateOf(golden.job('completed')), { allowed: false });
    fireEvent.click(screen.getByRole('button', { name: 'Allow for this job' }));

    expect(called.allow).toHaveBeenCalledTimes(1);
  });

  it('offers nothing for a job of another pool', () => {
    show(stateOf(golden.job('processing')), { otherPool: 'lab' });

    expect(screen.queryByRole('group', { name: 'Actions for resnet-48' })).toBeNull();
    expect(screen.getByText(/another pool, lab/)).toBeDefined();
  });
});

describe('folded parts', () => {
  const open = (title: string): void => {
    const details = screen
      .getByText(title, { selector: 'summary b' })
      .closest('details') as HTMLDetailsElement;
    details.open = true;
    fireEvent(details, new Event('toggle'));
  };

  it('hold the learners', () => {
    show(stateOf(golden.job('processing')));
    open('Learners');

    expect(within(screen.getByRole('table', { name: 'Learners' })).getAllByRole('row')).toHaveLength(5);
  });

  it('say what a learner waits for, and name its pod', () => {
    show(stateOf(golden.job('waiting')));
    open('Learners');
    const row = within(screen.getByRole('table', { name: 'Learners' })).getAllByRole('row')[1];

    expect(row.textContent).toContain('gpu-a · resnet-48-m0');
    expect(row.textContent).toContain('The image ml/train:7 is being pulled.');
    expect(screen.getByText(/Learner 1: No node fits pod/)).toBeDefined();
  });

  it('hold the log, with a filter and a level', () => {
    const row = (line: number, text: string, level: 'plain' | 'warn') => ({
      key: `0:${line}`,
      member: 0,
      line,
      atS: 1,
      text,
      level
    });
    const rows = [row(0, 'hello', 'plain'), row(1, '<b>UserWarning</b>', 'warn')];
    const log = {
      rows,
      count: 2,
      warnings: 1,
      errors: 0,
      dropped: 0,
      lastS: 1
    };
    show(stateOf(golden.job('processing'), { log }));
    open('Log');
    const box = screen.getByRole('log', { name: 'Log' });
    expect(box.getAttribute('aria-live')).toBe('off');
    expect(box.querySelectorAll('[data-line]')).toHaveLength(2);
    expect(box.textContent).toContain('<b>UserWarning</b>');

    fireEvent.change(screen.getByRole('searchbox', { name: 'Filter log lines' }), {
      target: { value: 'HELL' }
    });
    expect([...box.querySelectorAll('[data-line]')].map(l => (l as HTMLElement).dataset.line)).toEqual(['0']);
    expect(box.querySelector('mark')?.textContent).toBe('hell');

    fireEvent.change(screen.getByRole('searchbox', { name: 'Filter log lines' }), { target: { value: '' } });
    fireEvent.click(screen.getByRole('radio', { name: /Warnings/ }));
    expect([...box.querySelectorAll('[data-line]')].map(l => (l as HTMLElement).dataset.line)).toEqual(['1']);
    expect(screen.getByRole('switch', { name: 'Follow' }).getAttribute('aria-checked')).toBe('true');
  });

  it('hold the notes, with names as code', () => {
    show(stateOf(golden.job('processing')));
    open('Notes');

    expect(screen.getByText('model', { selector: 'code' })).toBeDefined();
  });
});
