import * as React from 'react';

import * as format from '../format';
import { Part } from './Part';
import type { IPanelProps } from './props';

/** Of a long list so many are drawn at once. */
const LISTED = 50;

export function Queue(props: IPanelProps): React.JSX.Element | null {
  const { pool } = props;
  if (!pool || pool.queue.length === 0) {
    return null;
  }
  const known = new Map(props.rows.map(r => [r.id, r.state.view]));
  return (
    <Part title="Queue" gist={format.count(pool.queue.length)} flush>
      <ol className="jp-dlaas-rows" aria-label="Queue">
        {pool.queue.slice(0, LISTED).map((id, i) => {
          const view = known.get(id);
          const own = view !== undefined && view.owner === props.user;
          return (
            <li key={id} className="jp-dlaas-queuerow" aria-current={own ? 'true' : undefined}>
              <span>{i + 1}</span>
              <div>
                <b>{id}</b>
                {view ? ` · ${own ? 'you' : view.owner}` : ''}
                {view?.reason && <p className="jp-dlaas-dim">{view.reason}</p>}
              </div>
              <span>
                {view
                  ? `${view.size.wish * Math.max(1, view.gpus_per_learner)} ${format.units(view.unit, view.size.wish)}`
                  : ''}
              </span>
            </li>
          );
        })}
      </ol>
      {pool.queue.length > LISTED && (
        <p className="jp-dlaas-none">{format.count(pool.queue.length - LISTED)} more wait behind them.</p>
      )}
    </Part>
  );
}
