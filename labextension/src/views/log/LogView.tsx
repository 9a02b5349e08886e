import * as React from 'react';

import { withoutEscapes } from '../../model/ansi';
import type { IJobState } from '../../model/job';
import { Segments } from '../controls/Segments';
import { Switch } from '../controls/Switch';
import * as format from '../format';
import { Row } from './LogRow';

type Level = 'all' | 'warn' | 'error';

export function LogBody({ state }: { state: IJobState }): React.JSX.Element {
  const { log } = state;
  const [level, setLevel] = React.useState<Level>('all');
  const [filter, setFilter] = React.useState('');
  const [member, setMember] = React.useState('');
  const [follow, setFollow] = React.useState(true);
  const box = React.useRef<HTMLDivElement>(null);
  const mark = filter.trim().toLowerCase();
  const members = [...new Set(log.rows.map(r => r.member))].filter(m => m >= 0).sort((a, b) => a - b);
  const rows = log.rows.filter(
    row =>
      (level === 'all' || row.level === level) &&
      (member === '' || String(row.member) === member) &&
      (!mark || withoutEscapes(row.text).toLowerCase().includes(mark))
  );
  React.useLayoutEffect(() => {
    if (follow && box.current) {
      box.current.scrollTop = box.current.scrollHeight;
    }
  });
  const onScroll = (event: React.UIEvent<HTMLDivElement>): void => {
    const { scrollTop, scrollHeight, clientHeight } = event.currentTarget;
    setFollow(scrollHeight - scrollTop - clientHeight < 24);
  };
  return (
    <>
      <div className="jp-dlaas-logbar">
        <Segments
          label="Log level"
          value={level}
          onChange={id => setLevel(id as Level)}
          values={[
            { id: 'all', text: 'All' },
            { id: 'warn', text: 'Warnings', number: log.warnings },
            { id: 'error', text: 'Errors', number: log.errors }
          ]}
        />
        <input
          className="jp-dlaas-input jp-dlaas-grow"
          type="search"
          aria-label="Filter log lines"
          placeholder="Filter"
          value={filter}
          onChange={event => setFilter(event.target.value)}
        />
        {members.length > 1 && (
          <select
            className="jp-dlaas-input"
            aria-label="Learner"
            value={member}
            onChange={event => setMember(event.target.value)}
          >
            <option value="">All learners</option>
            {members.map(m => (
              <option key={m} value={String(m)}>{`Learner ${m}`}</option>
            ))}
          </select>
        )}
        <span className="jp-dlaas-grow" />
        <Switch label="Follow" title="Keep the newest line in view" on={follow} onChange={setFollow} />
      </div>
      <div
        ref={box}
        className="jp-dlaas-log"
        role="log"
        aria-label="Log"
        aria-live="off"
        tabIndex={0}
        onScroll={onScroll}
      >
        {log.dropped > 0 && <p>{`${format.count(log.dropped)} earlier lines are not kept in this page.`}</p>}
        {rows.map(row => (
          <Row key={row.key} row={row} mark={mark} />
        ))}
        {rows.length === 0 && <p>{log.count === 0 ? 'Nothing printed yet.' : 'No line matches.'}</p>}
      </div>
    </>
  );
}
