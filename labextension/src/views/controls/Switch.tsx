import * as React from 'react';

export function Switch(props: {
  label: string;
  title: string;
  on: boolean;
  whyNot?: string | null;
  onChange: (on: boolean) => void;
}): React.JSX.Element {
  const off = props.whyNot ?? null;
  return (
    <button
      type="button"
      className="jp-dlaas-switch"
      role="switch"
      aria-checked={props.on}
      aria-disabled={off !== null || undefined}
      title={off ?? props.title}
      onClick={() => off === null && props.onChange(!props.on)}
    >
      <i aria-hidden="true" />
      {props.label}
    </button>
  );
}
