import * as React from 'react';

import { Icon, type IconName } from './Icon';

interface IButtonProps {
  icon?: IconName;
  label: string;
  onClick: (event: React.MouseEvent<HTMLButtonElement>) => void;
  primary?: boolean;
  /** The button shrinks to its icon where the card is narrow. */
  folds?: boolean;
  /** Why the button cannot act now; it stays focusable, so that the reason can be read. */
  whyNot?: string | null;
  /** Accessible name, if the label alone does not identify the button. */
  name?: string;
}

/** A button that stays focusable while it cannot act, and then says why. */
export function Button(props: IButtonProps): React.JSX.Element {
  const id = React.useId();
  const disabled = props.whyNot !== undefined && props.whyNot !== null;
  const reason = disabled && props.whyNot ? props.whyNot : undefined;
  return (
    <button
      type="button"
      className="jp-dlaas-button"
      data-primary={props.primary ? '' : undefined}
      data-fold-label={props.folds ? '' : undefined}
      aria-disabled={disabled || undefined}
      aria-describedby={reason ? id : undefined}
      aria-label={props.name}
      title={reason}
      onClick={event => {
        if (!disabled) {
          props.onClick(event);
        }
      }}
    >
      {props.icon && <Icon name={props.icon} />}
      <span>{props.label}</span>
      {reason && (
        <span id={id} hidden>
          {reason}
        </span>
      )}
    </button>
  );
}
