import type { INote } from '../protocol';

export interface IDiffRow {
  kind: 'same' | 'new' | 'old' | 'gap';
  text: string;
}

/** The changes of one cell of the notebook. */
export interface ICellDiff {
  /** Name of the cell: "cell [7]". */
  label: string;
  rows: IDiffRow[];
  /** The new cell, or null if the note holds only its changes. */
  after: string | null;
}

const CONTEXT = 2;
const KINDS: { [sign: string]: IDiffRow['kind'] } = {
  ' ': 'same',
  '+': 'new',
  '-': 'old',
  '@': 'gap'
};

/** Return the diff in a note of `suggest`, or null for any other note. */
export function cellDiff(note: INote): ICellDiff | null {
  const [before, after, ...lines] = note.text.split('\n');
  const isWhole = note.code === 'suggest';
  if (
    (!isWhole && note.code !== 'suggest_part') ||
    !before.startsWith('--- ') ||
    !after?.startsWith('+++ ')
  ) {
    return null;
  }
  const all = lines.map((line): IDiffRow => {
    const kind = KINDS[line.charAt(0)] ?? 'same';
    return { kind, text: kind === 'gap' ? '' : line.slice(1) };
  });
  const code = all.filter(row => row.kind !== 'gap');
  return {
    label: before.slice(4),
    rows: nearChanges(all),
    after: isWhole
      ? code
          .filter(row => row.kind !== 'old')
          .map(row => row.text)
          .join('\n')
      : null
  };
}

/** Return the changed rows with two rows around each; the rest is a gap. */
function nearChanges(all: readonly IDiffRow[]): IDiffRow[] {
  const changed = all.flatMap((row, i) => (row.kind === 'new' || row.kind === 'old' ? [i] : []));
  const isShown = all.map((row, i) => row.kind !== 'gap' && changed.some(at => Math.abs(at - i) <= CONTEXT));
  const rows: IDiffRow[] = [];
  all.forEach((row, i) => {
    if (isShown[i]) {
      rows.push(row);
    } else if (rows.length > 0 && rows[rows.length - 1].kind !== 'gap') {
      rows.push({ kind: 'gap', text: '' });
    }
  });
  return rows[rows.length - 1]?.kind === 'gap' ? rows.slice(0, -1) : rows;
}
