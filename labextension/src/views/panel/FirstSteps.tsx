import * as React from 'react';

import { Button } from '../controls/Button';
import { EXAMPLE } from './example';
import type { IPanelHandlers } from './props';

export function First({ handlers }: { handlers: IPanelHandlers }): React.JSX.Element {
  return (
    <div className="jp-dlaas-empty">
      <h4>Nothing trained yet</h4>
      <p>
        Put one line on top of a cell that trains. The cell runs in the background, tells when it starts, and
        can grow and shrink while it runs.
      </p>
      <pre className="jp-dlaas-snippet" tabIndex={0} aria-label="Example">
        {EXAMPLE.join('\n\n')}
      </pre>
      <div className="jp-dlaas-actions">
        {handlers.insertExample && (
          <Button icon="add" label="Insert below" primary onClick={handlers.insertExample} />
        )}
        {handlers.trainNotebook && <Button label="Train this notebook…" onClick={handlers.trainNotebook} />}
      </div>
    </div>
  );
}
