import * as React from 'react';

import { useLanguage } from '../../language';

function radioKeys(values: readonly string[], current: string, set: (value: string) => void) {
  return (event: React.KeyboardEvent<HTMLElement>): void => {
    const by =
      event.key === 'ArrowRight' || event.key === 'ArrowDown'
        ? 1
        : event.key === 'ArrowLeft' || event.key === 'ArrowUp'
          ? -1
          : 0;
    if (by) {
      event.preventDefault();
      const next = (values.indexOf(current) + by + values.length) % values.length;
      set(values[next]);
      event.currentTarget.querySelectorAll<HTMLElement>('[role=radio]')[next]?.focus();
    }
  };
}

/** A row of choices, of which one is chosen; arrows move between them. */
export function Segments(props: {
  label: string;
  values: readonly { id: string; text: string; number?: number }[];
  value: string;
  onChange: (id: string) => void;
}): React.JSX.Element {
  const { format } = useLanguage();
  const ids = props.values.map(v => v.id);
  return (
    <span
      className="jp-dlaas-seg"
      role="radiogroup"
      aria-label={props.label}
      onKeyDown={radioKeys(ids, props.value, props.onChange)}
    >
      {props.values.map(v => (
        <button
          key={v.id}
          type="button"
          role="radio"
          aria-checked={v.id === props.value}
          tabIndex={v.id === props.value ? 0 : -1}
          onClick={() => props.onChange(v.id)}
        >
          {v.text}
          {v.number !== undefined && <small> {format.count(v.number)}</small>}
        </button>
      ))}
    </span>
  );
}
