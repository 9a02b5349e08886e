import * as React from 'react';

import { useLanguage } from '../../language';
import { Button } from '../controls/Button';
import { EXAMPLE } from './example';
import type { IPanelHandlers } from './props';

/** The panel of a user without jobs: an example to start with. */
export function FirstSteps({ handlers }: { handlers: IPanelHandlers }): React.JSX.Element {
  const { trans } = useLanguage();
  return (
    <div className="jp-dlaas-empty">
      <h4>{trans.__('No jobs yet')}</h4>
      <p>
        {trans.__(
          'Add one line at the top of a cell that trains. The cell then runs in the background as a job, which can grow and shrink while it trains.'
        )}
      </p>
      <div className="jp-dlaas-actions">
        {handlers.insertExample && (
          <Button icon="add" label={trans.__('Insert below')} primary onClick={handlers.insertExample} />
        )}
        {handlers.trainNotebook && (
          <Button label={trans.__('Train this notebook…')} onClick={handlers.trainNotebook} />
        )}
      </div>
      <pre className="jp-dlaas-snippet" tabIndex={0} aria-label={trans.__('Example')}>
        {EXAMPLE.join('\n\n')}
      </pre>
    </div>
  );
}
