import * as React from 'react';

import { useLanguage } from '../../language';
import type { INote } from '../../protocol';
import { Fold } from '../controls/Fold';
import { Sentence } from '../controls/Sentence';

/** Notes about a job's submission, folded. */
export function Notes({ notes }: { notes: readonly INote[] }): React.JSX.Element | null {
  const { trans } = useLanguage();
  if (notes.length === 0) {
    return null;
  }
  const gist =
    notes.length === 1
      ? notes[0].text.replace(/`/g, '').split('\n')[0]
      : trans._n('%1 note about the submission', '%1 notes about the submission', notes.length);
  return (
    <Fold title={trans.__('Notes')} gist={gist}>
      {() => (
        <ul className="jp-dlaas-notes">
          {notes.map((note, i) => (
            <li key={i}>
              <Sentence text={note.text} />
            </li>
          ))}
        </ul>
      )}
    </Fold>
  );
}
