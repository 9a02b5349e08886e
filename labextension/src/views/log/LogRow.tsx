import * as React from 'react';

import { useLanguage } from '../../language';
import { pieces } from '../../model/ansi';
import type { ILogRow } from '../../model/log';

/** One line of the log. `mark` is the text to highlight, in lower case. */
export const LogRow = React.memo(function LogRow(props: { row: ILogRow; mark: string }): React.JSX.Element {
  const { trans, format } = useLanguage();
  const { row, mark } = props;
  if (row.skippedBytes !== undefined) {
    return (
      <p>
        {trans.__(
          '%1 of the log of learner %2 were skipped because this page was too slow.',
          format.bytes(row.skippedBytes),
          row.member
        )}
      </p>
    );
  }
  const tone = row.level === 'warn' ? 'warn' : row.level === 'error' ? 'bad' : undefined;
  return (
    <div data-tone={tone} data-member={row.member} data-line={row.line}>
      <span>{row.atS ? format.clockWithSeconds(row.atS) : ''}</span>
      <span>{row.member >= 0 ? `L${row.member}` : ''}</span>
      <code>
        {tone && (
          <b className="jp-dlaas-hidden">{tone === 'warn' ? trans.__('Warning: ') : trans.__('Error: ')}</b>
        )}
        {pieces(row.text).map((piece, i) => (
          <Piece key={i} text={piece.text} look={piece.look} mark={mark} />
        ))}
      </code>
    </div>
  );
});

/** A piece of a line that has one look, with the first match of the filter highlighted. */
function Piece(props: { text: string; look: string; mark: string }): React.JSX.Element {
  const { text, mark } = props;
  const at = mark ? text.toLowerCase().indexOf(mark) : -1;
  const content =
    at < 0 ? (
      text
    ) : (
      <>
        {text.slice(0, at)}
        <mark>{text.slice(at, at + mark.length)}</mark>
        {text.slice(at + mark.length)}
      </>
    );
  const className = props.look
    .split(' ')
    .filter(Boolean)
    .map(name => `jp-dlaas-ansi-${name}`)
    .join(' ');
  return className ? <span className={className}>{content}</span> : <>{content}</>;
}
