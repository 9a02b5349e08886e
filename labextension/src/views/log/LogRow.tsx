import * as React from 'react';

import { pieces } from '../../model/ansi';
import type { ILogRow } from '../../model/log';
import * as format from '../format';

export const Row = React.memo(function Row({ row, mark }: { row: ILogRow; mark: string }): React.JSX.Element {
  if (row.skippedBytes !== undefined) {
    return (
      <p>{`${format.bytes(row.skippedBytes)} of learner ${row.member}'s log were passed over: this page was too slow.`}</p>
    );
  }
  const tone = row.level === 'warn' ? 'warn' : row.level === 'error' ? 'bad' : undefined;
  return (
    <div data-tone={tone} data-member={row.member} data-line={row.line}>
      <span>{row.atS ? format.clock(row.atS, true) : ''}</span>
      <span>{row.member >= 0 ? `L${row.member}` : ''}</span>
      <code>
        {tone && <b className="jp-dlaas-hidden">{tone === 'warn' ? 'Warning: ' : 'Error: '}</b>}
        {pieces(row.text).map((piece, i) => (
          <Marked key={i} text={piece.text} look={piece.look} mark={mark} />
        ))}
      </code>
    </div>
  );
});

function Marked(props: { text: string; look: string; mark: string }): React.JSX.Element {
  const { text, mark } = props;
  const at = mark ? text.toLowerCase().indexOf(mark) : -1;
  const shown =
    at < 0 ? (
      text
    ) : (
      <>
        {text.slice(0, at)}
        <mark>{text.slice(at, at + mark.length)}</mark>
        {text.slice(at + mark.length)}
      </>
    );
  const look = props.look
    .split(' ')
    .filter(Boolean)
    .map(l => `jp-dlaas-ansi-${l}`)
    .join(' ');
  return look ? <span className={look}>{shown}</span> : <>{shown}</>;
}
