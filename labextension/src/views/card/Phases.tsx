import * as React from 'react';

import type { IJobView } from '../../protocol';
import { Icon } from '../controls/Icon';
import * as format from '../format';

const PHASES = ['QUEUED', 'DEPLOYING', 'DOWNLOADING', 'PROCESSING', 'STORING'] as const;
const PHASE_NAMES = ['Queued', 'Deploying', 'Downloading', 'Processing', 'Storing'];

export function Phases({ view }: { view: IJobView }): React.JSX.Element {
  const now = PHASES.findIndex(p => p === view.state);
  const ready = view.learners.filter(l => l.state === 'Training' || l.state === 'Joining').length;
  const wanted = Math.max(1, view.size.wish);
  const share = view.state === 'DEPLOYING' ? Math.round((100 * ready) / wanted) : 50;
  const queuedS = view.queued_s ?? null;
  return (
    <ol className="jp-dlaas-phases" aria-label="Phases">
      {PHASE_NAMES.map((name, i) => {
        const note =
          i === 0 && now > 0 && queuedS !== null
            ? format.duration(queuedS)
            : i === now && view.state === 'DEPLOYING'
              ? `${ready} of ${wanted} learners ready`
              : '';
        return (
          <li
            key={name}
            data-done={i < now ? '' : undefined}
            aria-current={i === now ? 'step' : undefined}
            style={i === now ? ({ '--v': `${share}%` } as React.CSSProperties) : undefined}
          >
            <b>
              {i < now && <Icon name="check" />} {name}
            </b>
            <span>{note}</span>
          </li>
        );
      })}
    </ol>
  );
}
