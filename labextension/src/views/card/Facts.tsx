import * as React from 'react';

import { metricKind } from '../../format';
import { type ILanguage, useLanguage } from '../../language';
import type { IJobState } from '../../model/job';
import { type IJobView, isFinal, type Point } from '../../protocol';

interface IFact {
  label: string;
  value: string;
  detail: string;
}

function checkpointFact({ trans, format }: ILanguage, view: IJobView): IFact | null {
  if (view.state !== 'HALTED' || typeof view.checkpoint_step !== 'number') {
    return null;
  }
  return {
    label: trans.__('Checkpoint'),
    value: trans.__('step %1', format.count(view.checkpoint_step)),
    detail: ''
  };
}

/** Return how long an ended job took, and for what. */
function durationFact({ trans, format }: ILanguage, view: IJobView): IFact | null {
  if (!isFinal(view.state) || view.ended_s === null) {
    return null;
  }
  const parts: string[] = [];
  if (typeof view.queued_s === 'number' && view.started_s !== null) {
    const endedS = view.ended_s;
    const interruptedS = (view.interruptions ?? []).reduce(
      (sum, one) => sum + (one.to_s ?? endedS) - one.at_s,
      0
    );
    const beforeS = Math.max(0, view.started_s - view.submitted_s);
    if (interruptedS > 0) {
      parts.push(trans.__('started after %1', format.duration(beforeS)));
      parts.push(trans.__('interrupted for %1', format.duration(interruptedS)));
    } else {
      parts.push(trans.__('queued %1', format.duration(view.queued_s)));
      parts.push(trans.__('deployed in %1', format.duration(Math.max(0, beforeS - view.queued_s))));
    }
    parts.push(trans.__('ran %1', format.duration(Math.max(0, endedS - view.started_s - interruptedS))));
  }
  return {
    label: trans.__('Took'),
    value: format.duration(view.ended_s - view.submitted_s),
    detail: parts.map(part => part.replaceAll(' ', '\u00a0')).join(', ')
  };
}

function metricFact({ trans, format }: ILanguage, name: string, points: readonly Point[]): IFact {
  const values = points.map(p => p[2]);
  const finite = values.filter(Number.isFinite);
  const kind = metricKind(name, values);
  const best = kind === 'loss' ? Math.min(...finite) : Math.max(...finite);
  return {
    label: format.metricLabel(name),
    value: format.metricValue(kind, values[values.length - 1]),
    detail: kind === 'other' || finite.length === 0 ? '' : trans.__('best %1', format.metricValue(kind, best))
  };
}

function resizesFact({ trans, format }: ILanguage, view: IJobView): IFact | null {
  if (view.resizes.length === 0) {
    return null;
  }
  const idleS = view.resizes.reduce((sum, resize) => sum + (resize.idle_s ?? 0), 0);
  return {
    label: trans.__('Resizes'),
    value: format.count(view.resizes.length),
    detail: idleS > 0 ? trans.__('%1 paused in total', format.duration(idleS)) : ''
  };
}

function speedFact({ trans }: ILanguage, view: IJobView): IFact | null {
  return view.speedup ? { label: trans.__('Speed'), value: view.speedup, detail: '' } : null;
}

function restartsFact({ trans, format }: ILanguage, view: IJobView): IFact | null {
  if (view.restarts === 0) {
    return null;
  }
  return {
    label: trans.__('Restarts'),
    value: format.count(view.restarts),
    detail:
      typeof view.checkpoint_step === 'number'
        ? trans.__('from the last checkpoint')
        : trans.__('from the beginning')
  };
}

/** Key figures of a halted or ended job: label over value. */
export function Facts({ state }: { state: IJobState }): React.JSX.Element | null {
  const language = useLanguage();
  const { view, curves } = state;
  const facts = [
    checkpointFact(language, view),
    durationFact(language, view),
    ...[...curves].slice(0, 3).map(([name, points]) => metricFact(language, name, points)),
    resizesFact(language, view),
    speedFact(language, view),
    restartsFact(language, view)
  ].filter(fact => fact !== null);
  if (facts.length === 0) {
    return null;
  }
  return (
    <dl className="jp-dlaas-facts">
      {facts.map(fact => (
        <div key={fact.label}>
          <dt>{fact.label}</dt>
          <dd>
            {fact.value}
            {fact.detail && <small>{fact.detail}</small>}
          </dd>
        </div>
      ))}
    </dl>
  );
}
