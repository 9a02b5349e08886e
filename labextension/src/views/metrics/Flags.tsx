import * as React from 'react';

import { useLanguage } from '../../language';
import type { IFlag } from './marks';

/** Labels of size changes and interruptions above their lines; a press describes all changes of one. */
export function Flags({ flags }: { flags: readonly IFlag[] }): React.JSX.Element {
  const { trans } = useLanguage();
  const id = React.useId();
  const [open, setOpen] = React.useState<number | null>(null);
  const shown = open === null ? undefined : flags.filter(flag => flag.first <= open).at(-1);
  const handleKey = (event: React.KeyboardEvent): void => {
    if (event.key === 'Escape' && shown) {
      setOpen(null);
      event.stopPropagation();
    }
  };
  return (
    <div className="jp-dlaas-track" data-kind="marks" onKeyDown={handleKey}>
      <span />
      <div role="group" aria-label={trans.__('Changes of size and interruptions')}>
        {flags.map(flag => (
          <button
            key={flag.first}
            type="button"
            style={{ left: `${(100 * Math.min(0.97, Math.max(0.03, flag.x))).toFixed(2)}%` }}
            aria-label={flag.name}
            aria-expanded={flag === shown}
            aria-controls={id}
            title={flag.marks.map(mark => mark.description).join('\n')}
            data-tight={flag.tight ? '' : undefined}
            onClick={() => setOpen(flag === shown ? null : flag.first)}
          >
            {flag.text}
            {flag.cause && <small>, {flag.cause}</small>}
          </button>
        ))}
      </div>
      <span />
      <ul id={id} className="jp-dlaas-told" hidden={!shown} aria-label={trans.__('What changed')}>
        {shown?.marks.map((mark, i) => (
          <li key={i}>{mark.description}</li>
        ))}
      </ul>
    </div>
  );
}
