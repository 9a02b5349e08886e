import * as React from 'react';

import { Icon } from './Icon';

/** A section of the card that folds; its summary line gives the main point. */
export function Fold(props: {
  title: string;
  gist: string;
  open?: boolean;
  children: () => React.ReactNode;
}): React.JSX.Element {
  const [open, setOpen] = React.useState(props.open ?? false);
  return (
    <details className="jp-dlaas-fold" open={open} onToggle={event => setOpen(event.currentTarget.open)}>
      <summary>
        <Icon name="right" />
        <b>{props.title}</b>
        <span className="jp-dlaas-dim jp-dlaas-grow">{props.gist}</span>
      </summary>
      <div>{open && props.children()}</div>
    </details>
  );
}
