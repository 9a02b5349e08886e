import * as React from 'react';

import type { IJobView } from '../../protocol';
import { Sentence } from '../controls/Sentence';

/** What a job waits for. */
export function Why({ view }: { view: IJobView }): React.JSX.Element | null {
  if (!view.reason) {
    return null;
  }
  return (
    <dl className="jp-dlaas-why jp-dlaas-block">
      <dt>Waits for</dt>
      <dd>
        <Sentence text={view.reason} />
      </dd>
    </dl>
  );
}
