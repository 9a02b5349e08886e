import * as React from 'react';

import { useLanguage } from '../../language';
import { cellDiff, type ICellDiff, type IDiffRow } from '../../model/diff';
import type { INote } from '../../protocol';
import { Button } from '../controls/Button';
import { Icon } from '../controls/Icon';
import { Sentence } from '../controls/Sentence';
import type { ICardHandlers } from '../handlers';

const SUGGESTION_CODES = new Set(['elastic_hint', 'suggest_hint', 'suggest', 'suggest_part']);

/** Return whether `ElasticSuggestion` shows this note. */
export function isSuggestion(notes: readonly INote[], note: INote): boolean {
  return SUGGESTION_CODES.has(note.code) && notes.some(other => cellDiff(other) !== null);
}

function DiffRow({ row }: { row: IDiffRow }): React.JSX.Element {
  switch (row.kind) {
    case 'gap':
      return (
        <span data-kind="gap" aria-hidden="true">
          ⋯
        </span>
      );
    case 'new':
      return <ins>{`+ ${row.text}`}</ins>;
    case 'old':
      return <del>{`− ${row.text}`}</del>;
    case 'same':
      return <span>{`  ${row.text}`}</span>;
  }
}

function CellDiff(props: { diff: ICellDiff; onCopy: ICardHandlers['copy'] }): React.JSX.Element {
  const { trans } = useLanguage();
  const { label, rows, after } = props.diff;
  const { onCopy } = props;
  return (
    <>
      <div className="jp-dlaas-diffhead">
        <b>{label}</b>
        {after !== null && onCopy && (
          <Button
            icon="copy"
            label={trans.__('Copy new cell')}
            name={trans.__('Copy the new %1', label)}
            onClick={() => onCopy(after, trans.__('The new %1', label))}
          />
        )}
      </div>
      <pre
        className="jp-dlaas-diff"
        tabIndex={0}
        role="group"
        aria-label={trans.__('What changes in %1', label)}
      >
        {rows.map((row, i) => (
          <DiffRow key={i} row={row} />
        ))}
      </pre>
    </>
  );
}

/** The rewrite of a plain loop's cells as an elastic loop, as a diff. */
export function ElasticSuggestion(props: {
  notes: readonly INote[];
  handlers: ICardHandlers;
}): React.JSX.Element | null {
  const { trans } = useLanguage();
  const id = React.useId();
  const [open, setOpen] = React.useState(false);
  const diffs = props.notes.map(cellDiff).filter(diff => diff !== null);
  if (diffs.length === 0) {
    return null;
  }
  const added = diffs.flatMap(diff => diff.rows).filter(row => row.kind === 'new').length;
  return (
    <div className="jp-dlaas-fold" data-open={open ? '' : undefined}>
      <button type="button" aria-expanded={open} aria-controls={id} onClick={() => setOpen(!open)}>
        <Icon name="right" />
        <b>{trans.__('Make it elastic')}</b>
        <span className="jp-dlaas-dim jp-dlaas-grow">
          {trans._n(
            '%1 more line lets the job grow, shrink, and resume at its last step',
            '%1 more lines let the job grow, shrink, and resume at its last step',
            added
          )}
        </span>
      </button>
      <div id={id} hidden={!open}>
        {open && (
          <>
            {diffs.map((diff, i) => (
              <CellDiff key={i} diff={diff} onCopy={props.handlers.copy} />
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
