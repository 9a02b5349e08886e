import { cleanup, fireEvent, screen, within } from '@testing-library/react';
import * as React from 'react';
import { afterEach, describe, expect, it } from 'vitest';

import * as golden from '../../../test/golden';
import { render } from '../../../test/render';
import {
  cellsToCheck,
  cellsToSend,
  errorCount,
  initialCells,
  initialForm,
  type ITrainForm,
  jobNameOf
} from '../../model/trainForm';
import type { INotebookChecked } from '../../protocol';
import { TrainForm } from './TrainForm';

const CELLS = ['x = 1', 'print(x)', 'fit(x, y)'].map((source, i) => ({
  source,
  tags: [],
  id: `id-${i + 1}`
}));
const FORM = { ...initialForm(CELLS, 'a.ipynb', null), sent: ['id-1', 'id-3'] };
const CHECKED: INotebookChecked = {
  cells: [
    {
      cell: 3,
      id: 'id-3',
      why: 'calls `fit`',
      kept: 1,
      kept_cells: [1],
      left_out: 2,
      errors: [
        {
          code: 'undefined_name',
          cell: 3,
          id: 'id-3',
          line: 1,
          text: 'cell [3], line 1, reads `y`. Define `y` above.'
        }
      ],
      warnings: [{ code: 'every_learner_writes', cell: 1, id: 'id-1', line: 1, text: 'all write `a.pt`.' }],
      type: ''
    }
  ],
  notes: [],
  error: null
};

function show(checked: INotebookChecked | null): HTMLElement[] {
  render(<TrainForm cells={CELLS} pool={null} form={FORM} checked={checked} onChange={() => undefined} />);
  return screen.getAllByRole('listitem');
}

afterEach(cleanup);

describe('what check says in the dialog', () => {
  it('stands at the cell of which it is said', () => {
    const [first, , third] = show(CHECKED);

    expect(third.textContent).toContain(
      'Trains: calls fit. As a job of its own, it needs 1 statement of [1]; 2 are left out.'
    );
    expect(within(third).getByRole('alert').textContent).toBe('cell [3], line 1, reads y. Define y above.');
    expect(first.textContent).toContain('all write a.pt.');
    expect(within(first).queryByRole('alert')).toBeNull();
    expect(screen.getByText('1 thing to fix first.')).toBeTruthy();
  });

  it('names the line to type where nothing is to fix', () => {
    const fine = { ...CHECKED.cells[0], errors: [], type: '%%train a --gpus 1:4' };
    const [, , third] = show({ ...CHECKED, cells: [fine] });

    expect(third.textContent).toContain('As a job of its own (%%train a --gpus 1:4), it needs');
    expect(screen.queryByText(/to fix first/)).toBeNull();
  });

  it('does not say that a training cell trains', () => {
    const marked = { ...CHECKED.cells[0], why: '%%train' };
    const [, , third] = show({ ...CHECKED, cells: [marked] });

    expect(third.textContent).toContain('As a job of its own, it needs 1 statement of [1]; 2 are left out.');
    expect(third.textContent).not.toContain('Trains:');
  });

  it('is left out while nothing is known', () => {
    show(null);

    expect(screen.queryByText(/Trains/)).toBeNull();
    expect(errorCount(null)).toBe(0);
  });
});

describe('the box for a spot job', () => {
  it('is off at first, says what it means once it is on, and goes along', () => {
    const pool = { ...golden.pool(), order: 'fair', spot_price: 0.3, spot_notice_s: 90 };
    const Form = (): React.JSX.Element => {
      const [form, setForm] = React.useState(initialForm(CELLS, 'a.ipynb', pool));
      return (
        <>
          <TrainForm cells={CELLS} pool={pool} form={form} checked={null} onChange={setForm} />
          <output>{JSON.stringify(form)}</output>
        </>
      );
    };
    render(<Form />);
    const box = screen.getByRole('checkbox', { name: 'Spot: cheaper, may be reclaimed' });
    const said = (): ITrainForm => JSON.parse(screen.getByRole('status').textContent ?? '') as ITrainForm;
    expect(said().spot).toBe(false);

    fireEvent.click(screen.getByText('cheaper, may be reclaimed'));

    expect(said().spot).toBe(true);
    expect(document.getElementById(box.getAttribute('aria-describedby') ?? '')?.textContent).toBe(
      "Uses only idle devices, and counts 30% in its queue's share. " +
        'When others need them, it writes a checkpoint within 1 min 30 s and continues later.'
    );
  });

  it('names no price where shares do not count', () => {
    const pool = { ...golden.pool(), order: 'shortest' };
    render(
      <TrainForm
        cells={CELLS}
        pool={pool}
        form={{ ...FORM, spot: true }}
        checked={null}
        onChange={() => undefined}
      />
    );

    expect(screen.getByText(/^Uses only idle devices\./)).toBeTruthy();
  });
});

describe('the cells', () => {
  it('keep their numbers for check, those that stay being empty; only the others are sent', () => {
    expect(cellsToCheck(CELLS, FORM).map(c => c.source)).toEqual(['x = 1', '', 'fit(x, y)']);
    expect(cellsToSend(CELLS, FORM).map(c => c.id)).toEqual(['id-1', 'id-3']);
  });
});

describe('Train this notebook', () => {
  const cell = (id: string, ...tags: string[]) => ({
    id,
    source: 'x = 1',
    tags
  });

  it('sends all cells but those tagged notrain, or only those tagged train', () => {
    expect(initialCells([cell('a'), cell('b', 'notrain')])).toEqual(['a']);
    expect(initialCells([cell('a'), cell('b', 'train')])).toEqual(['b']);
  });

  it('makes a job name of the notebook’s', () => {
    expect(jobNameOf('work/2 My Net (v3).ipynb')).toBe('my-net-v3');
    expect(jobNameOf('123.ipynb')).toBe('train');
  });
});
