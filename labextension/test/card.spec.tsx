import { cleanup, fireEvent, render, screen, within } from '@testing-library/react';
import * as React from 'react';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';

import { state_of_copy } from '../src/model/job';
import type { IJobState } from '../src/model/job';
import { NO_WISH } from '../src/model/wish';
import type { Point } from '../src/protocol';
import { chart } from '../src/views/curves';
import type { IJobView } from '../src/protocol';
import { type IJobCardProps, JobCard } from '../src/views/card';
import type { ICardHandlers } from '../src/views/handlers';
import * as golden from './golden';

const NOW_S = 1_773_497_801;

function handlers() {
  return {
    scale: vi.fn<ICardHandlers['scale']>(),
    set_elastic: vi.fn<ICardHandlers['set_elastic']>(),
    act: vi.fn<ICardHandlers['act']>(),
    retry_connection: vi.fn(),
    allow: vi.fn(),
    copy: vi.fn<NonNullable<ICardHandlers['copy']>>(),
    copy_report: vi.fn(),
    go_to_cell: vi.fn(),
    open_menu: vi.fn()
  };
}

function state_of(view: IJobView, more: Partial<IJobState> = {}): IJobState {
  const connection = {
    kind: 'live' as const,
    heard_s: NOW_S,
    retry_s: null,
    stale: false
  };
  const copy = state_of_copy({ ...golden.bundle(), job: view }, connection);
  return { ...copy, live: true, ...more };
}

let called: ReturnType<typeof handlers>;

function show(state: IJobState, more: Partial<IJobCardProps> = {}): HTMLElement {
  called = handlers();
  render(<JobCard state={state} handlers={called} now_s={NOW_S} allowed {...more} />);
  return screen.getByRole('region', { name: `Job ${state.view.id}` });
}

beforeEach(() => vi.useFakeTimers());
afterEach(() => {
  cleanup();
  vi.useRealTimers();
});

describe('the throughput', () => {
  it('is drawn in the unit of its number', () => {
    const points: Point[] = [1, 2, 3, 4, 5, 6].map(i => [i * 10, 100 + i, 1]);
    const view = { ...golden.job('processing'), started_s: 100 };
    const progress = { ...view.progress!, steps_per_s: 10, samples_per_s: 640 };
    const rate = chart(state_of(view, { progress, curves: new Map([['loss', points]]) }))!.tracks.find(
      t => t.key === 'rate'
    )!;

    expect([rate.value, rate.unit, rate.high]).toEqual(['640', 'samples/s', 640]);
  });
});

describe('values that are NaN or infinite', () => {
  const shown = (...values: number[]) => {
    const points: Point[] = values.map((v, i) => [i * 10, 100 + i, v]);
    const view = { ...golden.job('processing'), started_s: 100 };
    return chart(state_of(view, { curves: new Map([['loss', points]]) }))!.tracks[0];
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
    const card = show(state_of({ ...golden.job('completed'), notes }));

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
    const card = show(state_of(golden.job('processing'), { curves, sources: new Map([['loss', source]]) }));

    expect(within(card).getByRole('img', { name: said })).toBeTruthy();
    expect(within(card).queryAllByText(/^from the log$/)).toHaveLength(source === 'log' ? 1 : 0);
  });
});

describe('the card', () => {
  it.each([
    ['queued', 'Queued', ['Halt', 'Cancel']],
    ['deploying', 'Deploying', ['Halt', 'Cancel']],
    ['processing', 'Processing', ['Halt', 'Cancel']],
    ['scaling', 'Processing · scaling 2 → 4', ['Halt', 'Cancel']],
    ['halting', 'Processing · halting', ['Cancel']],
    ['halted', 'Halted', ['Resume', 'Cancel']],
    ['completed', 'Completed', ['Run again']],
    ['failed', 'Failed · your code', []],
    ['cancelled', 'Cancelled', ['Retry unchanged']]
  ])('%s: shows the state and exactly the actions that the server allows', (name, label, actions) => {
    const view = golden.job(name);
    const card = show(state_of(view));
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
    show(state_of(golden.job('processing')));

    expect(screen.getByRole('progressbar', { name: 'Progress' }).getAttribute('aria-valuetext')).toBe(
      'Epoch 8 of 30, 24 percent, 27 to 30 minutes left'
    );
    expect(screen.getByText('27–30 min left')).toBeDefined();
  });

  it('shows one track per metric and the resizes as marks', () => {
    const card = show(state_of(golden.job('processing')));
    const metrics = within(card).getByRole('group', { name: 'Metrics' });

    expect(
      within(metrics)
        .getAllByRole('img')
        .map(i => i.getAttribute('aria-label'))
    ).toEqual(['Loss, 0.437', 'Accuracy, 86.1%', 'GPUs, 4']);
    expect(within(metrics).getByRole('button', { name: '2 → 4, you' }).title).toContain('38 ms of pause');
  });

  it('cancels in two steps', () => {
    show(state_of(golden.job('processing')));
    fireEvent.click(screen.getByRole('button', { name: 'Cancel' }));
    expect(called.act).not.toHaveBeenCalled();

    fireEvent.click(screen.getByRole('button', { name: 'Keep' }));
    fireEvent.click(screen.getByRole('button', { name: 'Cancel' }));
    fireEvent.click(screen.getByRole('button', { name: 'Cancel job' }));

    expect(called.act).toHaveBeenCalledExactlyOnceWith('cancel');
  });

  it('cancels at once what ran for less than a minute', () => {
    show(state_of({ ...golden.job('processing'), started_s: NOW_S - 20 }));
    fireEvent.click(screen.getByRole('button', { name: 'Cancel' }));

    expect(called.act).toHaveBeenCalledExactlyOnceWith('cancel');
  });

  it('halts at once what writes checkpoints', () => {
    show(state_of(golden.job('processing')));
    fireEvent.click(screen.getByRole('button', { name: 'Halt' }));

    expect(called.act).toHaveBeenCalledExactlyOnceWith('halt');
  });

  it('asks before it halts a loop that would start over', () => {
    const view = golden.job('processing');
    const lost = 'Its training loop writes no checkpoints, so it starts over when resumed.';
    const actions = view.actions.map(a => (a.id === 'halt' ? { ...a, confirm: lost } : a));
    show(state_of({ ...view, actions }));
    fireEvent.click(screen.getByRole('button', { name: 'Halt' }));
    expect(called.act).not.toHaveBeenCalled();
    expect(screen.getByRole('alert').textContent).toBe(lost);

    fireEvent.click(screen.getByRole('button', { name: 'Keep' }));
    expect(screen.queryByText(lost)).toBeNull();
    fireEvent.click(screen.getByRole('button', { name: 'Halt' }));
    fireEvent.click(screen.getByRole('button', { name: 'Halt job' }));

    expect(called.act).toHaveBeenCalledExactlyOnceWith('halt');
  });

  it('claims a checkpoint of a halted job only where there is one', () => {
    const halted = golden.job('halted');
    show(state_of(halted));
    expect(screen.getByText('Checkpoint')).toBeTruthy();
    cleanup();

    show(state_of({ ...halted, checkpoint_step: null }));
    expect(screen.queryByText('Checkpoint')).toBeNull();
  });

  it('shows what a job waits for, and halts and resumes', () => {
    show(state_of(golden.job('queued')));
    expect(screen.getByText('4 GPUs at once; 2 are free. bert-47 holds 2.')).toBeDefined();
    cleanup();

    show(state_of(golden.job('halted')));
    fireEvent.click(screen.getByRole('button', { name: 'Resume' }));
    expect(called.act).toHaveBeenCalledExactlyOnceWith('resume');
  });
});

describe('the stepper', () => {
  it('moves by one learner and shows what is held beside what is wanted', () => {
    show(state_of(golden.job('scaling')));
    const number = screen.getByRole('spinbutton', {
      name: 'GPUs of resnet-48'
    });

    expect(number.getAttribute('aria-valuetext')).toBe('2 now, 4 wanted');
    fireEvent.click(screen.getByRole('button', { name: 'Add a GPU to resnet-48' }));
    expect(called.scale).toHaveBeenLastCalledWith(5);
    fireEvent.click(screen.getByRole('button', { name: 'Remove a GPU from resnet-48' }));
    expect(called.scale).toHaveBeenLastCalledWith(3);
    fireEvent.click(screen.getByRole('button', { name: 'Stay at 2' }));
    expect(called.scale).toHaveBeenLastCalledWith(2);
  });

  it('follows the keyboard', () => {
    show(state_of(golden.job('processing')));
    const number = screen.getByRole('spinbutton', {
      name: 'GPUs of resnet-48'
    });
    for (const key of ['ArrowUp', 'ArrowDown', 'Home', 'End', '6', 'Enter']) {
      fireEvent.keyDown(number, { key });
    }

    expect(called.scale.mock.calls.map(c => c[0])).toEqual([5, 3, 1, 8, 6]);
  });

  it('counts devices where a learner has several, and sends learners', () => {
    show(state_of({ ...golden.job('processing'), gpus_per_learner: 2 }));
    const number = screen.getByRole('spinbutton', {
      name: 'GPUs of resnet-48'
    });

    expect([number.getAttribute('aria-valuenow'), number.getAttribute('aria-valuemax')]).toEqual(['8', '16']);
    fireEvent.keyDown(number, { key: 'ArrowUp' });
    expect(called.scale).toHaveBeenLastCalledWith(5);
  });

  it('stays within its bounds and says why', () => {
    const view = golden.job('processing');
    show(state_of({ ...view, size: { ...view.size, wish: 8, held: 8 } }));
    const add = screen.getByRole('button', { name: 'Add a GPU to resnet-48' });
    fireEvent.click(add);

    expect(called.scale).not.toHaveBeenCalled();
    expect(add.getAttribute('aria-disabled')).toBe('true');
    expect(screen.getByText('8 is the most this job asked for.')).toBeDefined();
  });

  it('is off, with the server’s reason, while the server says so', () => {
    show(state_of(golden.job('halting')));
    fireEvent.click(screen.getByRole('button', { name: 'Add a GPU to resnet-48' }));

    expect(called.scale).not.toHaveBeenCalled();
    expect(screen.getByText('the job is halting')).toBeDefined();
  });

  it('says what more learners brought, where nothing is to be said of the wish', () => {
    const card = show(state_of(golden.job('processing')));

    expect(card.querySelector('.jp-dlaas-scalebar')?.textContent).toContain('2 → 4: 1.3× faster.');
  });

  it('says what was refused and why', () => {
    const wish = { ...NO_WISH, refusal: 'Queue vision may borrow 1 GPU.', refused: 'size' as const };
    const card = show(state_of(golden.job('processing'), { wish }));

    expect(card.querySelector('.jp-dlaas-scalebar')?.textContent).toContain(
      'Stayed at 4. Queue vision may borrow 1 GPU.'
    );
  });

  it('says once that the size stayed, where the server says it, too', () => {
    const refusal = 'Stayed at 4. resnet-48 takes 1 to 8 learners.';
    const card = show(state_of(golden.job('processing'), { wish: { ...NO_WISH, refusal, refused: 'size' } }));

    expect(card.querySelector('.jp-dlaas-scalebar .jp-dlaas-grow')?.textContent?.trim()).toBe(refusal);
  });
});

describe('the Auto switch', () => {
  const auto = (): HTMLElement => screen.getByRole('switch', { name: 'Auto' });

  it('lets the size follow the speed, and gives the choice back', () => {
    const view = golden.job('processing');
    show(state_of(view));
    expect(auto().getAttribute('aria-checked')).toBe('false');
    fireEvent.click(auto());
    expect(called.set_elastic).toHaveBeenLastCalledWith('auto');
    cleanup();

    const card = show(state_of({ ...view, elastic: 'auto' }));
    expect(card.querySelector('.jp-dlaas-scalebar')?.textContent).toContain(
      'Auto holds 4. 2 → 4: 1.3× faster.'
    );
    fireEvent.click(auto());
    expect(called.set_elastic).toHaveBeenLastCalledWith('manual');
  });

  it('shows the press at once, and is off as soon as a size is wished for', () => {
    const view = golden.job('processing');
    show(state_of(view, { wish: { ...NO_WISH, elastic: 'auto' } }));
    expect(auto().getAttribute('aria-checked')).toBe('true');
    cleanup();

    show(state_of({ ...view, elastic: 'auto' }, { wish: { ...NO_WISH, learners: 3 } }));
    expect(auto().getAttribute('aria-checked')).toBe('false');
  });

  it('says why it was refused', () => {
    const refusal =
      'resnet-48 stays manual: auto measures the steps of run.batches, which this program does not use.';
    const card = show(state_of(golden.job('processing'), { wish: { ...NO_WISH, refusal, refused: 'auto' } }));

    expect(card.querySelector('.jp-dlaas-scalebar')?.textContent).toContain(`Auto stays off. ${refusal}`);
  });

  it('is left out where there is nothing to choose, and cannot be pressed while the job halts', () => {
    const view = golden.job('processing');
    show(state_of({ ...view, size: { ...view.size, min: 4, max: 4 } }));
    expect(screen.queryByRole('switch', { name: 'Auto' })).toBeNull();
    cleanup();

    show(state_of(golden.job('halting')));
    fireEvent.click(auto());
    expect(called.set_elastic).not.toHaveBeenCalled();
    expect(auto().title).toBe('the job is halting');
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
    return state_of(
      { ...view, started_s: 1000, resizes, interruptions: [], progress: null },
      {
        progress: null,
        curves: new Map([['loss', points]])
      }
    );
  };

  it('are lines, each; those that would touch share a flag, and none is left out', () => {
    const drawn = chart(at(10, 12, 15, 40, 60))!;

    expect(drawn.marks.map(mark => Math.round(mark.x * 100))).toEqual([10, 12, 15, 40, 60]);
    expect(drawn.flags.map(flag => flag.text)).toEqual(['3 changes', '2 → 1', '1 → 2']);
    expect(drawn.flags.flatMap(flag => flag.marks)).toEqual(drawn.marks);
    expect(drawn.flags.map(flag => flag.cause)).toEqual(['', 'you', 'you']);
    expect(chart(at(10, 22))!.flags.map(flag => flag.cause)).toEqual(['', '']);
  });

  it('tell when pressed each pause in a list, and fold with Escape', () => {
    show(at(10, 12, 40));
    const button = screen.getByRole('button', { name: '2 changes: 1 → 2, 2 → 1' });
    fireEvent.click(button);
    const told = within(screen.getByRole('list', { name: 'What changed' })).getAllByRole('listitem');

    expect(button.getAttribute('aria-expanded')).toBe('true');
    expect(told.map(item => item.textContent?.replace(/at [\d:]+/, 'then'))).toEqual([
      '1 → 2, you, then, step 10, 20 ms of pause',
      '2 → 1, you, then, step 12, 21 ms of pause'
    ]);
    fireEvent.keyDown(button, { key: 'Escape' });
    expect(button.getAttribute('aria-expanded')).toBe('false');
    expect(screen.queryByRole('list', { name: 'What changed' })).toBeNull();
  });
});

describe('a failure', () => {
  it('says what, where and what to do, in this order', () => {
    const card = show(state_of(golden.job('failed')));
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
    show(state_of(golden.job('failed')));
    fireEvent.click(screen.getByRole('button', { name: 'Go to cell [5]' }));
    fireEvent.click(screen.getByRole('button', { name: 'Retry unchanged' }));
    fireEvent.click(screen.getByRole('button', { name: 'Copy report' }));

    expect(called.go_to_cell).toHaveBeenCalledTimes(1);
    expect(called.act).toHaveBeenCalledExactlyOnceWith('retry');
    expect(called.copy_report).toHaveBeenCalledTimes(1);
  });
});

describe('a card without a word from the server', () => {
  const stale = {
    kind: 'lost' as const,
    heard_s: NOW_S - 12,
    retry_s: NOW_S + 4,
    stale: true
  };

  it('says so, keeps its state and stops offering', () => {
    const card = show(state_of(golden.job('processing'), { connection: stale }));
    fireEvent.click(screen.getByRole('button', { name: /^Halt/ }));

    expect(card.dataset.status).toBe('processing');
    expect(card.querySelector('.jp-dlaas-banner')?.textContent).toContain(
      'Last heard 12 s ago. The job goes on without this page. Trying again in 4 s.'
    );
    expect(called.act).not.toHaveBeenCalled();
    fireEvent.click(screen.getByRole('button', { name: 'Try now' }));
    expect(called.retry_connection).toHaveBeenCalledTimes(1);
  });

  it('asks first in a notebook that is not trusted', () => {
    show(state_of(golden.job('completed')), { allowed: false });
    fireEvent.click(screen.getByRole('button', { name: 'Allow for this job' }));

    expect(called.allow).toHaveBeenCalledTimes(1);
  });

  it('offers nothing for a job of another pool', () => {
    show(state_of(golden.job('processing')), { other_pool: 'lab' });

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
    show(state_of(golden.job('processing')));
    open('Learners');

    expect(within(screen.getByRole('table', { name: 'Learners' })).getAllByRole('row')).toHaveLength(5);
  });

  it('hold the log, with a filter and a level', () => {
    const row = (line: number, text: string, level: 'plain' | 'warn') => ({
      key: `0:${line}`,
      member: 0,
      line,
      at_s: 1,
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
      last_s: 1
    };
    show(state_of(golden.job('processing'), { log }));
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
    show(state_of(golden.job('processing')));
    open('Notes');

    expect(screen.getByText('model', { selector: 'code' })).toBeDefined();
  });
});
