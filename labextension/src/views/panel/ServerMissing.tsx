import * as React from 'react';

import { Button } from '../controls/Button';
import type { IPanelHandlers } from './props';

const COMMAND = 'jupyter server extension enable dlaas_server';

export function Absent({ handlers }: { handlers: IPanelHandlers }): React.JSX.Element {
  return (
    <div className="jp-dlaas-empty">
      <h4>The server part is not enabled</h4>
      <p>
        This page has the training panel, but the Jupyter server at this address does not answer for it.
        Enable it once, then restart Jupyter:
      </p>
      <pre className="jp-dlaas-snippet" tabIndex={0} aria-label="Command">
        {COMMAND}
      </pre>
      <div className="jp-dlaas-actions">
        <Button icon="retry" label="Check again" primary onClick={handlers.retryConnection} />
        <Button
          icon="copy"
          label="Copy command"
          onClick={() => void navigator.clipboard.writeText(COMMAND)}
        />
      </div>
    </div>
  );
}
