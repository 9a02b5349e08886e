import * as React from 'react';

import { Icon } from './Icon';

/** The button that opens a menu of further actions. */
export function MoreButton(props: {
  label: string;
  onOpen: (anchor: HTMLElement) => void;
}): React.JSX.Element {
  return (
    <button
      type="button"
      className="jp-dlaas-button"
      data-bare=""
      aria-label={props.label}
      aria-haspopup="menu"
      onClick={event => props.onOpen(event.currentTarget)}
    >
      <Icon name="more" />
    </button>
  );
}
