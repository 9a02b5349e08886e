import * as React from 'react';

import type { ICellSource, ICheckedCell, INotebookChecked, IPoolView, ISaidOfCell } from '../../protocol';
import { Icon } from '../controls/Icon';
import { Segments } from '../controls/Segments';
import { Sentence } from '../controls/Sentence';
import * as format from '../format';

export interface ITrainForm {
  name: string;
  learnersMin: number;
  learnersMax: number;
  priority: number;
  spot: boolean;
  /** Ids of the cells that go. */
  sent: readonly string[];
}

const PRIORITIES = [
  { id: '-100', text: 'Low' },
  { id: '0', text: 'Normal' },
  { id: '100', text: 'High' }
];

/** A job name made of a notebook's: letters, digits, _ and -, starting with a letter. */
export function nameOf(path: string): string {
  const base = (path.split('/').pop() ?? '').replace(/\.ipynb$/, '').toLowerCase();
  const name = base
    .replace(/[^a-z0-9_]+/g, '-')
    .replace(/^[^a-z]+/, '')
    .replace(/-+$/, '');
  return name.slice(0, 39) || 'train';
}

/** All code cells but those tagged `notrain`; only those tagged `train` if any is. */
export function cellsThatGo(cells: readonly ICellSource[]): string[] {
  const only = cells.some(c => c.tags.includes('train'));
  return cells
    .filter(c => c.source.trim() && (only ? c.tags.includes('train') : !c.tags.includes('notrain')))
    .map(c => c.id);
}

export function firstForm(cells: readonly ICellSource[], path: string, pool: IPoolView | null): ITrainForm {
  const most = Math.max(1, pool?.devices_total ?? 1);
  return {
    name: nameOf(path),
    learnersMin: 1,
    learnersMax: most,
    priority: 0,
    spot: false,
    sent: cellsThatGo(cells)
  };
}

/** The cells as the server takes them: the reader's choice is all that counts, so tags do not travel. */
export function cellsToSend(cells: readonly ICellSource[], form: ITrainForm): ICellSource[] {
  return cells.filter(c => form.sent.includes(c.id)).map(c => ({ ...c, tags: [] }));
}

/** The cells as `check` reads them: all of them, so that their numbers stay; those that stay behind are empty. */
export function cellsToCheck(cells: readonly ICellSource[], form: ITrainForm): ICellSource[] {
  return cells.map(c => ({ ...c, tags: [], source: form.sent.includes(c.id) ? c.source : '' }));
}

/** How many things stand against training these cells. */
export function thingsToFix(checked: INotebookChecked | null): number {
  return checked ? checked.cells.reduce((sum, cell) => sum + cell.errors.length, checked.error ? 1 : 0) : 0;
}

function takenAlong(cell: ICheckedCell): string {
  const from = cell.kept_cells.map(n => `[${n}]`);
  const shown = from.length > 6 ? [...from.slice(0, 6), '…'] : from;
  const kept =
    cell.kept === 0
      ? 'takes nothing along'
      : `takes along ${cell.kept} statement${cell.kept > 1 ? 's' : ''} of ${shown.join(', ')}`;
  return cell.left_out > 0 ? `${kept}; ${cell.left_out} are not needed` : kept;
}

/** What `check` says, at the cell of which it says it. */
function Checked(props: { id: string; checked: INotebookChecked }): React.JSX.Element | null {
  const { id, checked } = props;
  const found = checked.cells.find(cell => cell.id === id);
  const ofCell = (said: ISaidOfCell): boolean => said.id === id;
  const errors = checked.cells.flatMap(cell => cell.errors).filter(ofCell);
  const warnings = [...checked.cells.flatMap(cell => cell.warnings), ...checked.notes].filter(ofCell);
  return (
    <>
      {found && (
        <p className="jp-dlaas-checked">
          <b>Trains:</b> <Sentence text={found.why} />; {takenAlong(found)}.
          {found.type && (
            <>
              {' '}
              As a job of its own: <code>{found.type}</code>
            </>
          )}
        </p>
      )}
      {errors.map((said, i) => (
        <div key={`e${i}`} className="jp-dlaas-problem" role="alert" data-tone="bad">
          <Icon name="fail" />
          <div>
            <Sentence text={said.text} />
          </div>
        </div>
      ))}
      {warnings.map((said, i) => (
        <div key={`w${i}`} className="jp-dlaas-problem" data-tone="warn">
          <Icon name="warn" />
          <div>
            <Sentence text={said.text} />
          </div>
        </div>
      ))}
    </>
  );
}

/** What it means to be a spot job, in this pool. */
function aboutSpot(pool: IPoolView | null): string {
  const isCounted = pool?.order === 'fair';
  const price =
    pool && isCounted ? `, and counts ${format.percent(pool.spot_price)} in its queue's share` : '';
  const notice = pool ? ` within ${format.duration(pool.spot_notice_s)}` : '';
  return `Takes only what is idle${price}. When others need it, it writes a checkpoint${notice} and goes on later.`;
}

function whole(text: string, least: number): number {
  return Math.max(least, Math.floor(Number(text)) || least);
}

/** Which cells go, under which name, on how many devices. */
export function TrainForm(props: {
  cells: readonly ICellSource[];
  pool: IPoolView | null;
  form: ITrainForm;
  /** What `check` says of the cells that go; null while that is not known. */
  checked: INotebookChecked | null;
  onChange: (form: ITrainForm) => void;
}): React.JSX.Element {
  const { cells, pool, form, checked, onChange } = props;
  const toFix = thingsToFix(checked);
  const id = React.useId();
  const unit = pool?.unit ?? 'GPU';
  const toggle = (cell: string, on: boolean): void =>
    onChange({
      ...form,
      sent: on ? [...form.sent, cell] : form.sent.filter(c => c !== cell)
    });
  return (
    <div className="jp-dlaas">
      <div className="jp-dlaas-form">
        <fieldset>
          <legend>Cells</legend>
          <ul className="jp-dlaas-cells">
            {cells.map((cell, i) => {
              const on = form.sent.includes(cell.id);
              const first = cell.source.trim().split('\n')[0] || 'empty';
              return (
                <li key={cell.id} data-off={on ? undefined : ''}>
                  <input
                    type="checkbox"
                    aria-label={`Ship cell ${i + 1}`}
                    checked={on}
                    onChange={event => toggle(cell.id, event.target.checked)}
                  />
                  <code>{i + 1}</code>
                  <div>
                    <code>{first}</code>
                  </div>
                  {checked && on && <Checked id={cell.id} checked={checked} />}
                </li>
              );
            })}
          </ul>
        </fieldset>
        <fieldset>
          <legend>Job</legend>
          <div className="jp-dlaas-fields">
            <label htmlFor={`${id}name`}>Name</label>
            <div>
              <input
                id={`${id}name`}
                className="jp-dlaas-input"
                value={form.name}
                onChange={event => onChange({ ...form, name: event.target.value })}
              />
            </div>
            <span className="jp-dlaas-label">{format.units(unit, 2)}</span>
            <div>
              <input
                className="jp-dlaas-input"
                type="number"
                min={1}
                aria-label={`Least number of ${format.units(unit, 2)}`}
                value={form.learnersMin}
                onChange={event => {
                  const least = whole(event.target.value, 1);
                  onChange({
                    ...form,
                    learnersMin: least,
                    learnersMax: Math.max(least, form.learnersMax)
                  });
                }}
              />
              to
              <input
                className="jp-dlaas-input"
                type="number"
                min={form.learnersMin}
                aria-label={`Greatest number of ${format.units(unit, 2)}`}
                value={form.learnersMax}
                onChange={event =>
                  onChange({
                    ...form,
                    learnersMax: whole(event.target.value, form.learnersMin)
                  })
                }
              />
            </div>
            <span className="jp-dlaas-label">Priority</span>
            <div>
              <Segments
                label="Priority"
                values={PRIORITIES}
                value={String(form.priority)}
                onChange={value => onChange({ ...form, priority: Number(value) })}
              />
            </div>
            <span className="jp-dlaas-label">Spot</span>
            <div>
              <input
                id={`${id}spot`}
                type="checkbox"
                aria-label="Spot: cheaper, may be taken back"
                aria-describedby={`${id}about-spot`}
                checked={form.spot}
                onChange={event => onChange({ ...form, spot: event.target.checked })}
              />
              <label htmlFor={`${id}spot`}>cheaper, may be taken back</label>
              <span id={`${id}about-spot`} className="jp-dlaas-small" hidden={!form.spot}>
                {aboutSpot(pool)}
              </span>
            </div>
          </div>
        </fieldset>
      </div>
      <div className="jp-dlaas-preview">
        {checked?.error && <span role="alert">{`The cells cannot be read: ${checked.error}.`}</span>}
        {toFix > 0 && <b>{`${toFix} thing${toFix > 1 ? 's' : ''} to fix first.`}</b>}
        <span>{`${form.sent.length} of ${cells.length} cells go`}</span>
        {checked && checked.cells.length === 0 && !checked.error && form.sent.length > 0 && (
          <span>no cell looks like training: all of them are the program</span>
        )}
        {pool ? (
          <span>{`${pool.devices_free} of ${pool.devices_total} ${format.units(unit, pool.devices_total)} are free now`}</span>
        ) : null}
      </div>
    </div>
  );
}
