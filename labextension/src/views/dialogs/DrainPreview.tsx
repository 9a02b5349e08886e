import * as React from 'react';

import type { IDrainView, ILeaveView } from '../../protocol';
import { Icon, numberOf, Swatch } from '../controls/Icon';

/** The server's sentence, without the name that stands beside it. */
function whatHappens(leave: ILeaveView): string {
  const text = leave.text.startsWith(`${leave.job} `) ? leave.text.slice(leave.job.length + 1) : leave.text;
  return `${text.charAt(0).toUpperCase()}${text.slice(1)}.`;
}

/** What a drain of a node would do, told before it is asked for. */
export function DrainPreview(props: {
  view: IDrainView;
  /** Who owns a job, where this page knows it. */
  owner: (job: string) => string | null;
  /** Another plan was shown before, and no longer holds. */
  isNew: boolean;
}): React.JSX.Element {
  const { view } = props;
  return (
    <div className="jp-dlaas jp-dlaas-drain">
      {props.isNew && (
        <div className="jp-dlaas-problem" role="alert" data-tone="warn">
          <Icon name="warn" />
          <div>Nothing was done: the pool changed meanwhile. This is what a drain does now.</div>
        </div>
      )}
      <p>
        <b>{view.gist}</b>
      </p>
      {view.jobs.length > 0 && (
        <table className="jp-dlaas-table">
          <caption className="jp-dlaas-hidden">{`Jobs on ${view.node}`}</caption>
          <thead>
            <tr>
              <th scope="col">Job</th>
              <th scope="col">Owner</th>
              <th scope="col">What happens</th>
            </tr>
          </thead>
          <tbody>
            {view.jobs.map(leave => (
              <tr key={leave.job}>
                <th scope="row">
                  <Swatch number={numberOf(leave.job)} /> {leave.job}
                </th>
                <td>{props.owner(leave.job) ?? '–'}</td>
                <td className="jp-dlaas-wrap">{whatHappens(leave)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
      <p className="jp-dlaas-small">Cordon only keeps new jobs away; running ones stay.</p>
    </div>
  );
}
