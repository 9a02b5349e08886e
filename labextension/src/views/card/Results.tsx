import * as React from 'react';

import type { IJobView } from '../../protocol';
import { Icon } from '../controls/Icon';

export function Results({ view }: { view: IJobView }): React.JSX.Element | null {
  if (view.state !== 'COMPLETED' || view.results.length === 0) {
    return null;
  }
  return (
    <div className="jp-dlaas-block">
      <ul className="jp-dlaas-list" aria-label="Results">
        {view.results.map(name => (
          <li key={name}>
            <code>{name}</code>
            <span className="jp-dlaas-dim">
              <code>{`dlaas.job("${view.id}").result("${name}")`}</code>
            </span>
            <span>
              <Icon name="check" /> can be loaded
            </span>
          </li>
        ))}
      </ul>
    </div>
  );
}
