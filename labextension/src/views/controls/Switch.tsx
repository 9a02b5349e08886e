import * as React from 'react';

/** An on/off switch that stays focusable while it cannot act, and then says why. */
export function Switch(props: {
  label: string;
  title: string;
  on: boolean;
  whyNot?: string | null;
  onChange: (on: boolean) => void;
}): React.JSX.Element {
  const whyNot = props.whyNot ?? null;
  return (
    <button
      type="button"
      className="jp-dlaas-switch"
      role="switch"
      aria-checked={props.on}
      aria-disabled={whyNot !== null || undefined}
      title={whyNot ?? props.title}
      onClick={() => whyNot === null && props.onChange(!props.on)}
    >
      <i aria-hidden="true" />
      {props.label}
    </button>
  );
}
