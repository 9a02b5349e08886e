import * as React from 'react';

import { useLanguage } from '../../language';
import type { IJobView } from '../../protocol';
import { Sentence } from '../controls/Sentence';

/** The reason why a job is queued. */
export function QueueReason({ view }: { view: IJobView }): React.JSX.Element | null {
  const { trans } = useLanguage();
  if (!view.reason) {
    return null;
  }
  return (
    <dl className="jp-dlaas-why jp-dlaas-block">
      <dt>{trans.__('Waits for')}</dt>
      <dd>
        <Sentence text={view.reason} />
      </dd>
    </dl>
  );
}
