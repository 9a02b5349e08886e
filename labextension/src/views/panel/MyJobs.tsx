import * as React from 'react';

import { type IJobView, isFinal } from '../../protocol';
import { Icon } from '../controls/Icon';
import { Segments } from '../controls/Segments';
import * as format from '../format';
import { JobRow } from './JobRow';
import { Part } from './Part';
import { type IPanelProps, IPanelRow } from './props';

type Show = 'all' | 'running' | 'queued' | 'ended';
const KINDS: {
  [kind in Show]: (view: IJobView) => boolean;
} = {
  all: () => true,
  running: view => !isFinal(view.state) && view.state !== 'QUEUED' && view.state !== 'HALTED',
  queued: view => view.state === 'QUEUED',
  ended: view => isFinal(view.state) || view.state === 'HALTED'
};

function notebookName(view: IJobView): string {
  return view.origin.notebook?.split('/').pop() ?? 'Other jobs';
}

export function MyJobs(props: IPanelProps & { nowS: number }): React.JSX.Element {
  const [filter, setFilter] = React.useState('');
  const [show, setShow] = React.useState<Show>('all');
  const wanted = filter.trim().toLowerCase();
  const own = props.rows.filter(r => props.user === '' || r.state.view.owner === props.user);
  const groups = new Map<string, IPanelRow[]>();
  for (const row of own) {
    const { view } = row.state;
    const name = notebookName(view);
    if (
      KINDS[show](view) &&
      (!wanted || view.id.toLowerCase().includes(wanted) || name.toLowerCase().includes(wanted))
    ) {
      const rows = groups.get(name);
      if (rows) {
        rows.push(row);
      } else {
        groups.set(name, [row]);
      }
    }
  }
  const number = (kind: Show): number => own.filter(r => KINDS[kind](r.state.view)).length;
  return (
    <Part title="My jobs" gist={format.count(own.length)} flush>
      <div className="jp-dlaas-filter">
        <input
          className="jp-dlaas-input"
          type="search"
          aria-label="Filter jobs"
          placeholder="Filter by name or notebook"
          value={filter}
          onChange={event => setFilter(event.target.value)}
        />
        <Segments
          label="Show"
          value={show}
          onChange={id => setShow(id as Show)}
          values={[
            { id: 'all', text: 'All', number: own.length },
            { id: 'running', text: 'Running', number: number('running') },
            { id: 'queued', text: 'Queued', number: number('queued') },
            { id: 'ended', text: 'Ended', number: number('ended') }
          ]}
        />
      </div>
      {[...groups].map(([name, rows]) => (
        <React.Fragment key={name}>
          <div className="jp-dlaas-group">
            <Icon name="file" />
            <span>{name}</span>
            <span className="jp-dlaas-dim">{rows.length}</span>
          </div>
          <ul className="jp-dlaas-rows" aria-label={`Jobs of ${name}`}>
            {rows.map(row => (
              <JobRow
                key={row.id}
                row={row}
                stale={props.stale}
                nowS={props.nowS}
                handlers={props.handlers}
              />
            ))}
          </ul>
        </React.Fragment>
      ))}
      {groups.size === 0 && <p className="jp-dlaas-none">No job matches.</p>}
      {props.areMore && (
        <p className="jp-dlaas-none">
          Older jobs, and those far back in line, are not listed here:{' '}
          <code>jupyter dlaas jobs --limit 1000</code>
        </p>
      )}
    </Part>
  );
}
