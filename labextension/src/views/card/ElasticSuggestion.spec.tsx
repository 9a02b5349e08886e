import { cleanup, fireEvent, screen, within } from '@testing-library/react';
import * as React from 'react';
import { afterEach, describe, expect, it, vi } from 'vitest';

import * as golden from '../../../test/golden';
import { render } from '../../../test/render';
import { cellDiff } from '../../model/diff';
import { stateOfCopy } from '../../model/job';
import type { INote } from '../../protocol';
import { JobCard } from './JobCard';

const DIFF = `--- cell [5]
+++ cell [5], elastic
@@ -1,12 +1,15 @@
 %%train digits --gpus 1:2
 a = 1
 b = 2
 c = 3
-for epoch in range(9):
-    for x, y in loader:
+run = dlaas.run()
+net, opt = run.prepare(net, opt)
+for epoch in run.epochs(9):
+    for x, y in run.batches(loader):
         loss = step(x, y)
         d = 4
         e = 5
         f = 6
         g = 7
         h = 8
+    run.log(loss=loss)`;
const NOTES: INote[] = [
  { code: 'elastic_hint', text: 'a plain loop: these lines would let it grow:\n    run = dlaas.run()' },
  { code: 'left_out_shown', text: 'left out: cell [2], line 3: it only prints.' },
  { code: 'suggest', text: DIFF },
  { code: 'suggest_hint', text: 'cell [5], line 9: all learners must `break` at the same step.' }
];

function show(notes: INote[], allowed = true) {
  const copy = vi.fn();
  const job = { ...golden.job('processing'), notes };
  const handlers = {
    scale: vi.fn(),
    setElastic: vi.fn(),
    act: vi.fn(),
    retryConnection: vi.fn(),
    allow: vi.fn(),
    copy,
    copyReport: vi.fn(),
    openMenu: vi.fn()
  };
  const state = stateOfCopy(
    { ...golden.bundle(), job },
    { kind: 'live', receivedS: 0, retryS: null, stale: false }
  );
  render(<JobCard state={state} handlers={handlers} nowS={0} allowed={allowed} />);
  return copy;
}

afterEach(cleanup);

describe('a diff of one cell', () => {
  it('shows what changes with two lines around, and gaps between', () => {
    const kinds = cellDiff(NOTES[2])!.rows.map(row => row.kind);

    expect(kinds.join(' ')).toBe('same same old old new new new new same same gap same same new');
  });

  it('holds the whole new cell, with the line of its magic', () => {
    const after = cellDiff(NOTES[2])!.after!.split('\n');

    expect(after[0]).toBe('%%train digits --gpus 1:2');
    expect(after[4]).toBe('run = dlaas.run()');
    expect(after).toHaveLength(15);
    expect(after).not.toContain('for epoch in range(9):');
  });

  it('has no new cell where only a part was sent', () => {
    expect(cellDiff({ code: 'suggest_part', text: DIFF })!.after).toBeNull();
  });

  it.each([
    { code: 'suggest', text: 'no diff' },
    { code: 'elastic_hint', text: DIFF },
    { code: 'suggest', text: '' }
  ])('is none for $code "$text"', note => {
    expect(cellDiff(note)).toBeNull();
  });
});

describe('the card of a plain loop', () => {
  it('has a button that opens the diff and closes it again', () => {
    show(NOTES);
    const button = screen.getByRole('button', { name: /^Make it elastic/ });
    expect(button.getAttribute('aria-expanded')).toBe('false');
    expect(screen.queryByRole('group', { name: 'What changes in cell [5]' })).toBeNull();

    fireEvent.click(button);
    const diff = screen.getByRole('group', { name: 'What changes in cell [5]' });
    expect(button.getAttribute('aria-expanded')).toBe('true');
    expect(
      within(diff)
        .getAllByRole('insertion')
        .map(one => one.textContent)
    ).toEqual([
      '+ run = dlaas.run()',
      '+ net, opt = run.prepare(net, opt)',
      '+ for epoch in run.epochs(9):',
      '+     for x, y in run.batches(loader):',
      '+     run.log(loss=loss)'
    ]);
    expect(within(diff).getAllByRole('deletion')).toHaveLength(2);
    expect(screen.getByText(/all learners must/)).toBeTruthy();

    fireEvent.click(button);
    expect(screen.queryByRole('group', { name: 'What changes in cell [5]' })).toBeNull();
  });

  it('copies the new cell, also in a notebook that is not trusted', () => {
    const copy = show(NOTES, false);
    fireEvent.click(screen.getByRole('button', { name: /^Make it elastic/ }));
    fireEvent.click(screen.getByRole('button', { name: 'Copy the new cell [5]' }));

    expect(copy).toHaveBeenCalledWith(cellDiff(NOTES[2])!.after, 'The new cell [5]');
  });

  it('does not repeat the lines among its notes', () => {
    show(NOTES);

    expect(screen.getByText('left out: cell [2], line 3: it only prints.')).toBeTruthy();
    expect(screen.queryByText(/these lines would let it grow/)).toBeNull();
  });

  it('has no such button where nothing is suggested', () => {
    show(NOTES.slice(0, 2));

    expect(screen.queryByRole('button', { name: /^Make it elastic/ })).toBeNull();
  });

  it('shows markup in a cell as text', () => {
    show([{ code: 'suggest', text: `${DIFF}\n+<img src=x onerror=alert(1)>` }]);
    fireEvent.click(screen.getByRole('button', { name: /^Make it elastic/ }));

    expect(document.querySelector('img')).toBeNull();
  });
});
