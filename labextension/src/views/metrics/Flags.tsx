import * as React from 'react';

import type { IFlag } from './chart';

export const left = (x: number): React.CSSProperties => ({
  left: `${(100 * x).toFixed(2)}%`
});

/** Changes of size above their lines; a press tells all of one: when, at which step, how long the pause was. */
export function Flags({ flags }: { flags: readonly IFlag[] }): React.JSX.Element {
  const id = React.useId();
  const [open, setOpen] = React.useState<number | null>(null);
  const told = open === null ? undefined : flags.filter(flag => flag.first <= open).at(-1);
  const close = (event: React.KeyboardEvent): void => {
    if (event.key === 'Escape' && told) {
      setOpen(null);
      event.stopPropagation();
    }
  };
  return (
    <div className="jp-dlaas-track" data-kind="marks" onKeyDown={close}>
      <span />
      <div role="group" aria-label="Changes of size and interruptions">
        {flags.map(flag => (
          <button
            key={flag.first}
            type="button"
            style={left(Math.min(0.97, Math.max(0.03, flag.x)))}
            aria-label={flag.name}
            aria-expanded={flag === told}
            aria-controls={id}
            title={flag.marks.map(mark => mark.said).join('\n')}
            data-tight={flag.tight ? '' : undefined}
            onClick={() => setOpen(flag === told ? null : flag.first)}
          >
            {flag.text}
            {flag.cause && <small>, {flag.cause}</small>}
          </button>
        ))}
      </div>
      <span />
      <ul id={id} className="jp-dlaas-told" hidden={!told} aria-label="What changed">
        {told?.marks.map((mark, i) => (
          <li key={i}>{mark.said}</li>
        ))}
      </ul>
    </div>
  );
}
