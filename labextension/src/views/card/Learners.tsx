import * as React from 'react';

import type { IJobView } from '../../protocol';
import { Fold } from '../controls/Fold';

function learnersGist(view: IJobView): string {
  const words = new Map<string, number>();
  for (const learner of view.learners) {
    const word = learner.state.toLowerCase();
    words.set(word, (words.get(word) ?? 0) + 1);
  }
  if (words.size === 1 && words.has('training')) {
    return `${view.learners.length} of ${view.size.wish} training`;
  }
  return [...words].map(([word, n]) => `${n} ${word}`).join(' · ');
}

export function Learners({ view }: { view: IJobView }): React.JSX.Element | null {
  if (view.learners.length === 0) {
    return null;
  }
  return (
    <Fold title="Learners" gist={learnersGist(view)}>
      {() => (
        <table className="jp-dlaas-table">
          <caption className="jp-dlaas-hidden">Learners</caption>
          <thead>
            <tr>
              <th scope="col">Learner</th>
              <th scope="col">Node</th>
              <th scope="col">Device</th>
              <th scope="col" className="jp-dlaas-num jp-dlaas-wide">
                Rank
              </th>
              <th scope="col">State</th>
            </tr>
          </thead>
          <tbody>
            {view.learners.map(learner => (
              <tr key={learner.member}>
                <th scope="row">{learner.member}</th>
                <td>{learner.node}</td>
                <td>{learner.devices.join(', ') || '–'}</td>
                <td className="jp-dlaas-num jp-dlaas-wide">{learner.rank}</td>
                <td>{learner.state}</td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
    </Fold>
  );
}
