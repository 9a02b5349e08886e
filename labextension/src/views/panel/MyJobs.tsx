import * as React from 'react';

import { useLanguage } from '../../language';
import { type IJobView, isFinal } from '../../protocol';
import { Icon } from '../controls/Icon';
import { Segments } from '../controls/Segments';
import { Sentence } from '../controls/Sentence';
import { JobRow } from './JobRow';
import { Part } from './Part';
import type { IPanelProps, IPanelRow } from './props';

type Kind = 'all' | 'running' | 'queued' | 'ended';

function isOfKind(view: IJobView, kind: Kind): boolean {
  const hasEnded = isFinal(view.state) || view.state === 'HALTED';
  switch (kind) {
    case 'all':
      return true;
    case 'running':
      return !hasEnded && view.state !== 'QUEUED';
    case 'queued':
      return view.state === 'QUEUED';
    case 'ended':
      return hasEnded;
  }
}

/** Return the file name of a job's notebook; empty if it has none. */
function notebookOf(view: IJobView): string {
  return view.origin.notebook?.split('/').pop() ?? '';
}

function matches(view: IJobView, filter: string): boolean {
  return [view.id, notebookOf(view)].some(name => name.toLowerCase().includes(filter));
}

function byNotebook(rows: readonly IPanelRow[]): Map<string, IPanelRow[]> {
  const groups = new Map<string, IPanelRow[]>();
  for (const row of rows) {
    const notebook = notebookOf(row.state.view);
    groups.set(notebook, [...(groups.get(notebook) ?? []), row]);
  }
  return groups;
}

/** The user's jobs by notebook, with a filter. */
export function MyJobs(props: IPanelProps): React.JSX.Element {
  const { trans, format } = useLanguage();
  const [filter, setFilter] = React.useState('');
  const [kind, setKind] = React.useState<Kind>('all');
  const own = props.rows.filter(row => props.user === '' || row.state.view.owner === props.user);
  const shown = own
    .filter(row => isOfKind(row.state.view, kind))
    .filter(row => matches(row.state.view, filter.trim().toLowerCase()));
  const groups = byNotebook(shown);
  const choice = (id: Kind, text: string): { id: Kind; text: string; number: number } => ({
    id,
    text,
    number: own.filter(row => isOfKind(row.state.view, id)).length
  });
  return (
    <Part title={trans.__('My jobs')} gist={format.count(own.length)} flush>
      <div className="jp-dlaas-filter">
        <input
          className="jp-dlaas-input"
          type="search"
          aria-label={trans.__('Filter jobs')}
          placeholder={trans.__('Filter by name or notebook')}
          value={filter}
          onChange={event => setFilter(event.target.value)}
        />
        <Segments
          label={trans.__('Show')}
          value={kind}
          onChange={id => setKind(id as Kind)}
          values={[
            choice('all', trans.__('All')),
            choice('running', trans.__('Running')),
            choice('queued', trans.__('Queued')),
            choice('ended', trans.__('Ended'))
          ]}
        />
      </div>
      {[...groups].map(([notebook, rows]) => {
        const title = notebook || trans.__('Other jobs');
        return (
          <React.Fragment key={notebook}>
            <div className="jp-dlaas-group">
              <Icon name="file" />
              <span>{title}</span>
              <span className="jp-dlaas-dim">{rows.length}</span>
            </div>
            <ul className="jp-dlaas-rows" aria-label={trans.__('Jobs of %1', title)}>
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
        );
      })}
      {groups.size === 0 && <p className="jp-dlaas-none">{trans.__('No job matches.')}</p>}
      {props.hasMore && (
        <p className="jp-dlaas-none">
          <Sentence
            text={trans.__(
              'Older jobs and jobs far back in the queue are not listed here: `%1`',
              'jupyter dlaas jobs --limit 1000'
            )}
          />
        </p>
      )}
    </Part>
  );
}
