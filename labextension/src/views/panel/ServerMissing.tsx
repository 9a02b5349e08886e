import * as React from 'react';

import { useLanguage } from '../../language';
import { Button } from '../controls/Button';
import type { IPanelHandlers } from './props';

const COMMAND = 'jupyter server extension enable dlaas_server';

/** The panel of a Jupyter server without the dlaas_server extension. */
export function ServerMissing({ handlers }: { handlers: IPanelHandlers }): React.JSX.Element {
  const { trans } = useLanguage();
  return (
    <div className="jp-dlaas-empty">
      <h4>{trans.__('The server extension is not enabled')}</h4>
      <p>
        {trans.__(
          'The training panel needs the dlaas_server extension of this Jupyter server. Enable it, then restart Jupyter:'
        )}
      </p>
      <pre className="jp-dlaas-snippet" tabIndex={0} aria-label={trans.__('Command')}>
        {COMMAND}
      </pre>
      <div className="jp-dlaas-actions">
        <Button icon="retry" label={trans.__('Check again')} primary onClick={handlers.retryConnection} />
        <Button
          icon="copy"
          label={trans.__('Copy command')}
          onClick={() => void navigator.clipboard.writeText(COMMAND)}
        />
      </div>
    </div>
  );
}
