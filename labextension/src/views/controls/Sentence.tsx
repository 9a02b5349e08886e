import * as React from 'react';

/** A sentence of the server, with what stands between backticks as code. */
export function Sentence({ text }: { text: string }): React.JSX.Element {
  return <>{text.split('`').map((part, i) => (i % 2 ? <code key={i}>{part}</code> : part))}</>;
}
