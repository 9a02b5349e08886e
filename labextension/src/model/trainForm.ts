import type { ICellSource, INotebookChecked, IPoolView } from '../protocol';

/** The fields of the dialog *Train this notebook*. */
export interface ITrainForm {
  name: string;
  learnersMin: number;
  learnersMax: number;
  priority: number;
  spot: boolean;
  /** Ids of the cells to send. */
  sent: readonly string[];
}

const NAME_LENGTH_MAX = 39;

/** Make a job name from a notebook's path: letters, digits, _ and -, starting with a letter. */
export function jobNameOf(path: string): string {
  const base = (path.split('/').pop() ?? '').replace(/\.ipynb$/, '').toLowerCase();
  const name = base
    .replace(/[^a-z0-9_]+/g, '-')
    .replace(/^[^a-z]+/, '')
    .replace(/-+$/, '');
  return name.slice(0, NAME_LENGTH_MAX) || 'train';
}

/** Return the cells to send at first: all but those tagged `notrain`, or only those tagged `train` if any is. */
export function initialCells(cells: readonly ICellSource[]): string[] {
  const hasTrainTag = cells.some(cell => cell.tags.includes('train'));
  return cells
    .filter(cell => cell.source.trim())
    .filter(cell => (hasTrainTag ? cell.tags.includes('train') : !cell.tags.includes('notrain')))
    .map(cell => cell.id);
}

export function initialForm(cells: readonly ICellSource[], path: string, pool: IPoolView | null): ITrainForm {
  return {
    name: jobNameOf(path),
    learnersMin: 1,
    learnersMax: Math.max(1, pool?.devices_total ?? 1),
    priority: 0,
    spot: false,
    sent: initialCells(cells)
  };
}

/** Return the cells as the server takes them. The user chose them, so tags do not count any more. */
export function cellsToSend(cells: readonly ICellSource[], form: ITrainForm): ICellSource[] {
  return cells.filter(cell => form.sent.includes(cell.id)).map(cell => ({ ...cell, tags: [] }));
}

/** Return the cells for `check`: all of them, so that their numbers stay; those not sent are empty. */
export function cellsToCheck(cells: readonly ICellSource[], form: ITrainForm): ICellSource[] {
  return cells.map(cell => ({
    ...cell,
    tags: [],
    source: form.sent.includes(cell.id) ? cell.source : ''
  }));
}

/** Count the errors that must be fixed before these cells can train. */
export function errorCount(checked: INotebookChecked | null): number {
  if (!checked) {
    return 0;
  }
  return checked.cells.reduce((sum, cell) => sum + cell.errors.length, checked.error ? 1 : 0);
}
