import * as React from 'react';

import type { INote } from '../../protocol';
import { Fold } from '../controls/Fold';
import { Sentence } from '../controls/Sentence';

export function Notes({ notes }: { notes: readonly INote[] }): React.JSX.Element | null {
  if (notes.length === 0) {
    return null;
  }
  const gist =
    notes.length === 1
      ? notes[0].text.replace(/`/g, '').split('\n')[0]
      : `${notes.length} about what was sent`;
  return (
    <Fold title="Notes" gist={gist}>
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
