import * as React from 'react';

import { cellDiff, type ICellDiff, type IDiffRow } from '../../model/diff';
import type { INote } from '../../protocol';
import { Button } from '../controls/Button';
import { Icon } from '../controls/Icon';
import { Sentence } from '../controls/Sentence';
import type { ICardHandlers } from '../handlers';

const SUGGESTED = new Set(['elastic_hint', 'suggest_hint', 'suggest', 'suggest_part']);

/** The notes that stand in the section below, where there is one. */
export function isSuggestion(notes: readonly INote[], note: INote): boolean {
  return SUGGESTED.has(note.code) && notes.some(one => cellDiff(one) !== null);
}

function Row({ row }: { row: IDiffRow }): React.JSX.Element {
  if (row.kind === 'gap') {
    return (
      <span data-kind="gap" aria-hidden="true">
        ⋯
      </span>
    );
  }
  const text = `${row.kind === 'new' ? '+' : row.kind === 'old' ? '−' : ' '} ${row.text}`;
  if (row.kind === 'new') {
    return <ins>{text}</ins>;
  }
  return row.kind === 'old' ? <del>{text}</del> : <span>{text}</span>;
}

function Cell(props: { diff: ICellDiff; onCopy?: (text: string, what: string) => void }): React.JSX.Element {
  const { label, rows, after } = props.diff;
  const onCopy = props.onCopy;
  return (
    <>
      <div className="jp-dlaas-diffhead">
        <b>{label}</b>
        {after !== null && onCopy && (
          <Button
            icon="copy"
            label="Copy new cell"
            name={`Copy the new ${label}`}
            onClick={() => onCopy(after, `The new ${label}`)}
          />
        )}
      </div>
      <pre className="jp-dlaas-diff" tabIndex={0} role="group" aria-label={`What changes in ${label}`}>
        {rows.map((row, i) => (
          <Row key={i} row={row} />
        ))}
      </pre>
    </>
  );
}

/** A plain loop's own cells with the lines put in that let its job grow, shrink and resume. */
export function MakeElastic(props: {
  notes: readonly INote[];
  handlers: ICardHandlers;
}): React.JSX.Element | null {
  const id = React.useId();
  const [open, setOpen] = React.useState(false);
  const diffs = props.notes.map(cellDiff).filter((one): one is ICellDiff => one !== null);
  if (diffs.length === 0) {
    return null;
  }
  const added = diffs.flatMap(diff => diff.rows).filter(row => row.kind === 'new').length;
  return (
    <div className="jp-dlaas-fold" data-open={open ? '' : undefined}>
      <button type="button" aria-expanded={open} aria-controls={id} onClick={() => setOpen(!open)}>
        <Icon name="right" />
        <b>Make it elastic</b>
        <span className="jp-dlaas-dim jp-dlaas-grow">
          {`${added} lines let it grow, shrink and resume at the step`}
        </span>
      </button>
      <div id={id} hidden={!open}>
        {open && (
          <>
            {diffs.map((diff, i) => (
              <Cell key={i} diff={diff} onCopy={props.handlers.copy} />
            ))}
            {props.notes
              .filter(note => note.code === 'suggest_hint')
              .map((note, i) => (
                <p key={i} className="jp-dlaas-small">
                  <Sentence text={note.text} />
                </p>
              ))}
          </>
        )}
      </div>
    </div>
  );
}
