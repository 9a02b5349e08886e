import * as React from 'react';

import { useLanguage } from '../../language';
import type { IJobView } from '../../protocol';
import { Icon } from '../controls/Icon';

/** Return the Python call that loads a result. */
function loadCall(id: string, name: string): string {
  return `dlaas.job("${id}").result("${name}")`;
}

/** The results of a completed job, with the call that loads each. */
export function Results({ view }: { view: IJobView }): React.JSX.Element | null {
  const { trans } = useLanguage();
  if (view.state !== 'COMPLETED' || view.results.length === 0) {
    return null;
  }
  return (
    <div className="jp-dlaas-block">
      <ul className="jp-dlaas-list" aria-label={trans.__('Results')}>
        {view.results.map(name => (
          <li key={name}>
            <code>{name}</code>
            <span className="jp-dlaas-dim">
              <code>{loadCall(view.id, name)}</code>
            </span>
            <span>
              <Icon name="check" /> {trans.__('can be loaded')}
            </span>
          </li>
        ))}
      </ul>
    </div>
  );
}
