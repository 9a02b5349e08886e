import * as React from 'react';

import { Icon } from '../controls/Icon';

/** A part of the panel that folds. */
export function Part(props: {
  title: string;
  gist: string;
  children: React.ReactNode;
  flush?: boolean;
}): React.JSX.Element {
  const [open, setOpen] = React.useState(true);
  return (
    <details
      className="jp-dlaas-panel-part"
      open={open}
      onToggle={event => setOpen(event.currentTarget.open)}
    >
      <summary>
        <Icon name="right" />
        <h4>{props.title}</h4>
        <span className="jp-dlaas-dim jp-dlaas-small">{props.gist}</span>
      </summary>
      <div data-flush={props.flush ? '' : undefined}>{open && props.children}</div>
    </details>
  );
}
