import * as React from 'react';

import { capitalised } from '../../format';
import { useLanguage } from '../../language';
import type { IDrainView, ILeaveView } from '../../protocol';
import { Icon, numberOf, Swatch } from '../controls/Icon';

/** Return the server's sentence without the job's name, which stands beside it. */
function consequence(leave: ILeaveView): string {
  const text = leave.text.startsWith(`${leave.job} `) ? leave.text.slice(leave.job.length + 1) : leave.text;
  return `${capitalised(text)}.`;
}

/** The effects of draining a node on the jobs there. */
export function DrainPreview(props: {
  view: IDrainView;
  /** Name of a job's owner, if this page knows it. */
  owner: (job: string) => string | null;
  /** The plan shown before no longer holds; this is a new one. */
  isNew: boolean;
}): React.JSX.Element {
  const { trans } = useLanguage();
  const { view } = props;
  return (
    <div className="jp-dlaas jp-dlaas-drain">
      {props.isNew && (
        <div className="jp-dlaas-problem" role="alert" data-tone="warn">
          <Icon name="warn" />
          <div>
            {trans.__('Nothing was done: the pool changed in the meantime. A drain would now do this:')}
          </div>
        </div>
      )}
      <p>
        <b>{view.gist}</b>
      </p>
      {view.jobs.length > 0 && (
        <table className="jp-dlaas-table">
          <caption className="jp-dlaas-hidden">{trans.__('Jobs on %1', view.node)}</caption>
          <thead>
            <tr>
              <th scope="col">{trans.__('Job')}</th>
              <th scope="col">{trans.__('Owner')}</th>
              <th scope="col">{trans.__('What happens')}</th>
            </tr>
          </thead>
          <tbody>
            {view.jobs.map(leave => (
              <tr key={leave.job}>
                <th scope="row">
                  <Swatch number={numberOf(leave.job)} /> {leave.job}
                </th>
                <td>{props.owner(leave.job) ?? '–'}</td>
                <td className="jp-dlaas-wrap">{consequence(leave)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
      <p className="jp-dlaas-small">{trans.__('Cordoning only keeps new jobs away; running jobs stay.')}</p>
    </div>
  );
}
