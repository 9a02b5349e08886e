import * as React from 'react';

import { Icon, type IconName } from './Icon';

interface IButtonProps {
  icon?: IconName;
  label: string;
  onClick: (event: React.MouseEvent<HTMLButtonElement>) => void;
  primary?: boolean;
  /** The button shrinks to its icon where the card is narrow. */
  folds?: boolean;
  whyNot?: string | null;
  name?: string;
}

/** A button that stays focusable when it cannot act, and then says why. */
export function Button(props: IButtonProps): React.JSX.Element {
  const id = React.useId();
  const off = props.whyNot !== undefined && props.whyNot !== null;
  return (
    <button
      type="button"
      className="jp-dlaas-button"
      data-primary={props.primary ? '' : undefined}
      data-fold-label={props.folds ? '' : undefined}
      aria-disabled={off || undefined}
      aria-describedby={off && props.whyNot ? id : undefined}
      aria-label={props.name}
      title={off && props.whyNot ? props.whyNot : undefined}
      onClick={event => {
        if (!off) {
          props.onClick(event);
        }
      }}
    >
      {props.icon && <Icon name={props.icon} />}
      <span>{props.label}</span>
      {off && props.whyNot && (
        <span id={id} hidden>
          {props.whyNot}
        </span>
      )}
    </button>
  );
}

export const NOT_CONNECTED = 'Not connected: trying again.';
