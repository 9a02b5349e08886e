import * as React from 'react';

import { useLanguage } from '../../language';
import { shownSize } from '../../model/size';
import type { IJobView } from '../../protocol';
import { Part } from './Part';
import type { IPanelProps } from './props';

/** Number of queued jobs listed. */
const LISTED_MAX = 50;

function QueueRow(props: {
  id: string;
  place: number;
  /** Null: this page does not know the job. */
  view: IJobView | null;
  isOwn: boolean;
}): React.JSX.Element {
  const { trans, format } = useLanguage();
  const { view } = props;
  return (
    <li className="jp-dlaas-queuerow" aria-current={props.isOwn ? 'true' : undefined}>
      <span>{props.place}</span>
      <div>
        <b>{props.id}</b>
        {view ? ` · ${props.isOwn ? trans.__('you') : view.owner}` : ''}
        {view?.reason && <p className="jp-dlaas-dim">{view.reason}</p>}
      </div>
      <span>{view ? format.quantity(shownSize(view, view.size.wish), view.unit) : ''}</span>
    </li>
  );
}

/** The queue of the pool, in its order. */
export function Queue({ pool, rows, user }: IPanelProps): React.JSX.Element | null {
  const { trans, format } = useLanguage();
  if (!pool || pool.queue.length === 0) {
    return null;
  }
  const views = new Map(rows.map(row => [row.id, row.state.view]));
  const hidden = pool.queue.length - LISTED_MAX;
  const title = trans.__('Queue');
  return (
    <Part title={title} gist={format.count(pool.queue.length)} flush>
      <ol className="jp-dlaas-rows" aria-label={title}>
        {pool.queue.slice(0, LISTED_MAX).map((id, i) => {
          const view = views.get(id) ?? null;
          return <QueueRow key={id} id={id} place={i + 1} view={view} isOwn={view?.owner === user} />;
        })}
      </ol>
      {hidden > 0 && (
        <p className="jp-dlaas-none">
          {trans._n('%2 more job is queued.', '%2 more jobs are queued.', hidden, format.count(hidden))}
        </p>
      )}
    </Part>
  );
}
