import * as React from 'react';

import { Icon } from './Icon';

/** A line that reports a condition, with buttons that act on it. */
export function Banner(props: {
  icon: 'plug' | 'lock' | 'warn' | 'info' | 'back';
  tone: 'idle' | 'warn' | 'bad';
  children: React.ReactNode;
  actions?: React.ReactNode;
}): React.JSX.Element {
  return (
    <div className="jp-dlaas-banner" data-tone={props.tone}>
      <Icon name={props.icon} />
      <div>{props.children}</div>
      {props.actions && <div className="jp-dlaas-actions">{props.actions}</div>}
    </div>
  );
}
