import * as React from 'react';

import { type ILanguage, useLanguage } from '../../language';
import type { ICellMessage, ICheckedCell, INotebookChecked } from '../../protocol';
import { Icon } from '../controls/Icon';
import { Sentence } from '../controls/Sentence';

const CELLS_LISTED = 6;

/** Say which earlier statements a training cell needs. */
function included({ trans }: ILanguage, cell: ICheckedCell): string {
  if (cell.kept === 0) {
    return cell.left_out > 0
      ? trans._n(
          'needs no earlier statement; %1 is left out',
          'needs no earlier statement; %1 are left out',
          cell.left_out
        )
      : trans.__('needs no earlier statement');
  }
  const numbers = cell.kept_cells.slice(0, CELLS_LISTED).map(n => `[${n}]`);
  const cells = [...numbers, ...(cell.kept_cells.length > CELLS_LISTED ? ['…'] : [])].join(', ');
  const kept = trans._n('needs %1 statement of %2', 'needs %1 statements of %2', cell.kept, cells);
  return cell.left_out > 0
    ? trans._n('%2; %1 is left out', '%2; %1 are left out', cell.left_out, kept)
    : kept;
}

/** Say what the cell would be as a job of its own: the whole notebook leaves nothing out. */
function alone(language: ILanguage, cell: ICheckedCell, firstLine: string): string {
  const { trans } = language;
  const what = included(language, cell);
  return cell.type && cell.type !== firstLine
    ? trans.__('As a job of its own (`%1`), it %2.', cell.type, what)
    : trans.__('As a job of its own, it %1.', what);
}

function Problem(props: { message: ICellMessage; isError: boolean }): React.JSX.Element {
  return (
    <div
      className="jp-dlaas-problem"
      role={props.isError ? 'alert' : undefined}
      data-tone={props.isError ? 'bad' : 'warn'}
    >
      <Icon name={props.isError ? 'fail' : 'warn'} />
      <div>
        <Sentence text={props.message.text} />
      </div>
    </div>
  );
}

/** The result of `check` for one cell: what it trains, what it needs, errors and warnings. */
export function CellChecks(props: {
  id: string;
  firstLine: string;
  checked: INotebookChecked;
}): React.JSX.Element {
  const language = useLanguage();
  const { trans } = language;
  const { id, checked } = props;
  const training = checked.cells.find(cell => cell.id === id);
  const isOfCell = (message: ICellMessage): boolean => message.id === id;
  const errors = checked.cells.flatMap(cell => cell.errors).filter(isOfCell);
  const warnings = [...checked.cells.flatMap(cell => cell.warnings), ...checked.notes].filter(isOfCell);
  return (
    <>
      {training && (
        <p className="jp-dlaas-checked">
          {!training.why.startsWith('%%') && (
            <>
              <b>{trans.__('Trains:')}</b> <Sentence text={trans.__('%1.', training.why)} />{' '}
            </>
          )}
          <Sentence text={alone(language, training, props.firstLine)} />
        </p>
      )}
      {errors.map((message, i) => (
        <Problem key={`e${i}`} message={message} isError />
      ))}
      {warnings.map((message, i) => (
        <Problem key={`w${i}`} message={message} isError={false} />
      ))}
    </>
  );
}
