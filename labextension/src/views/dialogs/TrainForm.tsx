import * as React from 'react';

import { useLanguage } from '../../language';
import { errorCount, type ITrainForm } from '../../model/trainForm';
import type { ICellSource, INotebookChecked, IPoolView } from '../../protocol';
import { CellChecks } from './CellChecks';
import { JobFields } from './JobFields';

export interface ITrainFormProps {
  cells: readonly ICellSource[];
  pool: IPoolView | null;
  form: ITrainForm;
  /** The result of `check` for the cells to send; null while it is not known. */
  checked: INotebookChecked | null;
  onChange: (form: ITrainForm) => void;
}

/** The list of code cells, each with a box that says whether it is sent. */
function CellList({ cells, form, checked, onChange }: ITrainFormProps): React.JSX.Element {
  const { trans } = useLanguage();
  const toggle = (id: string, isSent: boolean): void =>
    onChange({ ...form, sent: isSent ? [...form.sent, id] : form.sent.filter(other => other !== id) });
  return (
    <fieldset>
      <legend>{trans.__('Cells')}</legend>
      <ul className="jp-dlaas-cells">
        {cells.map((cell, i) => {
          const isSent = form.sent.includes(cell.id);
          const firstLine = cell.source.trim().split('\n')[0];
          return (
            <li key={cell.id} data-off={isSent ? undefined : ''}>
              <input
                type="checkbox"
                aria-label={trans.__('Include cell %1', i + 1)}
                checked={isSent}
                onChange={event => toggle(cell.id, event.target.checked)}
              />
              <code>{i + 1}</code>
              <div>
                <code>{firstLine || trans.__('empty')}</code>
              </div>
              {checked && isSent && <CellChecks id={cell.id} firstLine={firstLine} checked={checked} />}
            </li>
          );
        })}
      </ul>
    </fieldset>
  );
}

/** The number of cells to send, errors, and free devices. */
function Preview({ cells, pool, form, checked }: ITrainFormProps): React.JSX.Element {
  const { trans, format } = useLanguage();
  const errors = errorCount(checked);
  const hasNoTraining = checked?.cells.length === 0 && !checked.error && form.sent.length > 0;
  return (
    <div className="jp-dlaas-preview">
      {checked?.error && <span role="alert">{trans.__('The cells cannot be read: %1.', checked.error)}</span>}
      {errors > 0 && <b>{trans._n('%1 thing to fix first.', '%1 things to fix first.', errors)}</b>}
      <span>
        {trans._n('%2 of %1 cell is sent', '%2 of %1 cells are sent', cells.length, form.sent.length)}
      </span>
      {hasNoTraining && (
        <span>{trans.__('no cell looks like training: the program consists of all of them')}</span>
      )}
      {pool && (
        <span>
          {trans.__(
            '%1 of %2 are free now',
            format.count(pool.devices_free),
            format.quantity(pool.devices_total, pool.unit)
          )}
        </span>
      )}
    </div>
  );
}

/** The dialog *Train this notebook*: which cells are sent, and as what job. */
export function TrainForm(props: ITrainFormProps): React.JSX.Element {
  return (
    <div className="jp-dlaas">
      <div className="jp-dlaas-form">
        <CellList {...props} />
        <JobFields pool={props.pool} form={props.form} onChange={props.onChange} />
      </div>
      <Preview {...props} />
    </div>
  );
}
