import * as React from 'react';

import { type ILanguage, useLanguage } from '../../language';
import type { IJobView, State } from '../../protocol';
import { Icon } from '../controls/Icon';

function phases({ trans }: ILanguage): { state: State; name: string }[] {
  return [
    { state: 'QUEUED', name: trans.__('Queued') },
    { state: 'DEPLOYING', name: trans.__('Deploying') },
    { state: 'DOWNLOADING', name: trans.__('Downloading') },
    { state: 'PROCESSING', name: trans.__('Processing') },
    { state: 'STORING', name: trans.__('Storing') }
  ];
}

/** The phases of a job that starts or ends; the current one is marked. */
export function Phases({ view }: { view: IJobView }): React.JSX.Element {
  const language = useLanguage();
  const { trans, format } = language;
  const all = phases(language);
  const current = all.findIndex(phase => phase.state === view.state);
  const ready = view.learners.filter(l => l.state === 'Training' || l.state === 'Joining').length;
  const wanted = view.learners.length || Math.max(1, view.size.wish); // the gang; the request may have changed since
  const percent = view.state === 'DEPLOYING' ? Math.round((100 * ready) / wanted) : 50;
  const queuedS = view.queued_s ?? null;
  const detail = (index: number): string => {
    if (index === 0 && current > 0 && queuedS !== null) {
      return format.duration(queuedS);
    }
    return index === current && view.state === 'DEPLOYING'
      ? trans._n('%2 of %1 learner ready', '%2 of %1 learners ready', wanted, ready)
      : '';
  };
  return (
    <ol className="jp-dlaas-phases" aria-label={trans.__('Phases')}>
      {all.map(({ state, name }, i) => (
        <li
          key={state}
          data-done={i < current ? '' : undefined}
          aria-current={i === current ? 'step' : undefined}
          style={i === current ? ({ '--v': `${percent}%` } as React.CSSProperties) : undefined}
        >
          <b>
            {i < current && <Icon name="check" />} {name}
          </b>
          <span>{detail(i)}</span>
        </li>
      ))}
    </ol>
  );
}
