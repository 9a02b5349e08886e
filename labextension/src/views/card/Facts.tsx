import * as React from 'react';

import type { IJobState } from '../../model/job';
import { type IJobView, isFinal } from '../../protocol';
import * as format from '../format';

interface IFact {
  label: string;
  value: string;
  small: string;
}

function resizeFact(view: IJobView): IFact | null {
  if (view.resizes.length === 0) {
    return null;
  }
  const idleS = view.resizes.reduce((sum, r) => sum + (r.idle_s ?? 0), 0);
  return {
    label: 'Resizes',
    value: format.count(view.resizes.length),
    small: idleS > 0 ? `${format.duration(idleS)} of pause in all` : ''
  };
}

/** Label over value: what a halted or ended job came to. */
export function Facts(props: { state: IJobState; nowS: number }): React.JSX.Element | null {
  const { view, curves } = props.state;
  const facts: (IFact | null)[] = [];
  if (view.state === 'HALTED' && typeof view.checkpoint_step === 'number') {
    facts.push({
      label: 'Checkpoint',
      value: `step ${format.count(view.checkpoint_step)}`,
      small: ''
    });
  }
  if (isFinal(view.state) && view.ended_s !== null) {
    const queued = view.queued_s ?? null;
    const trained = view.started_s === null ? null : view.ended_s - view.started_s;
    const isWhole = queued !== null && view.started_s !== null && !view.interruptions?.length;
    const deployed = isWhole ? Math.max(0, view.started_s! - view.submitted_s - queued) : null;
    facts.push({
      label: 'Took',
      value: format.duration(view.ended_s - view.submitted_s),
      small:
        queued === null || trained === null
          ? ''
          : [
              `queued ${format.duration(queued)}`,
              deployed === null ? '' : `deployed in ${format.duration(deployed)}`,
              `ran ${format.duration(trained)}`
            ]
              .filter(Boolean)
              .join(', ')
    });
  }
  for (const [name, points] of [...curves].slice(0, 3)) {
    const values = points.map(p => p[2]);
    const kind = format.metricKind(name, values);
    const best = kind === 'loss' ? Math.min(...values) : Math.max(...values);
    facts.push({
      label: format.metricLabel(name),
      value: format.metricValue(kind, values[values.length - 1]),
      small: kind === 'other' ? '' : `best ${format.metricValue(kind, best)}`
    });
  }
  facts.push(resizeFact(view));
  if (view.speedup) {
    facts.push({ label: 'Speed', value: view.speedup, small: '' });
  }
  if (view.restarts > 0) {
    facts.push({
      label: 'Restarts',
      value: format.count(view.restarts),
      small: typeof view.checkpoint_step !== 'number' ? 'from the start' : 'from the last checkpoint'
    });
  }
  const shown = facts.filter((f): f is IFact => f !== null);
  if (shown.length === 0) {
    return null;
  }
  return (
    <dl className="jp-dlaas-facts">
      {shown.map(fact => (
        <div key={fact.label}>
          <dt>{fact.label}</dt>
          <dd>
            {fact.value}
            {fact.small && <small>{fact.small}</small>}
          </dd>
        </div>
      ))}
    </dl>
  );
}
