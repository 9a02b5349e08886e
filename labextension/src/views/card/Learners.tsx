import * as React from 'react';

import { type ILanguage, useLanguage } from '../../language';
import type { IJobView } from '../../protocol';
import { Fold } from '../controls/Fold';

/** Count the learners by state: `4 of 4 training`, `3 training · 1 joining`. */
function learnersGist({ trans }: ILanguage, view: IJobView): string {
  const counts = new Map<string, number>();
  for (const learner of view.learners) {
    const state = learner.state.toLowerCase();
    counts.set(state, (counts.get(state) ?? 0) + 1);
  }
  if (counts.size === 1 && counts.has('training')) {
    return trans.__(
      '%1 of %2 training',
      view.learners.length,
      Math.max(view.learners.length, view.size.wish)
    );
  }
  return [...counts].map(([state, n]) => trans._p('learners', '%1 %2', n, state)).join(' · ');
}

/** What a learner that does not run yet waits for. */
function waitingReason(view: IJobView, member: number): string | undefined {
  return (view.waiting_for ?? []).find(reason => reason.member === member)?.what;
}

/** The table of a job's learners, folded. */
export function Learners({ view }: { view: IJobView }): React.JSX.Element | null {
  const language = useLanguage();
  const { trans } = language;
  if (view.learners.length === 0) {
    return null;
  }
  return (
    <Fold title={trans.__('Learners')} gist={learnersGist(language, view)}>
      {() => (
        <table className="jp-dlaas-table">
          <caption className="jp-dlaas-hidden">{trans.__('Learners')}</caption>
          <thead>
            <tr>
              <th scope="col">{trans.__('Learner')}</th>
              <th scope="col">{trans.__('Node')}</th>
              <th scope="col">{trans.__('Device')}</th>
              <th scope="col" className="jp-dlaas-num jp-dlaas-wide">
                {trans.__('Rank')}
              </th>
              <th scope="col">{trans.__('State')}</th>
            </tr>
          </thead>
          <tbody>
            {view.learners.map(learner => (
              <tr key={learner.member}>
                <th scope="row">{learner.member}</th>
                <td>{learner.pod ? `${learner.node} · ${learner.pod}` : learner.node}</td>
                <td>{learner.devices.join(', ') || '–'}</td>
                <td className="jp-dlaas-num jp-dlaas-wide">{learner.rank}</td>
                <td>{waitingReason(view, learner.member) ?? learner.state}</td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
    </Fold>
  );
}
