import * as React from 'react';

import { useLanguage } from '../../language';
import { withoutEscapes } from '../../model/ansi';
import type { IJobState } from '../../model/job';
import type { ILogRow } from '../../model/log';
import { Segments } from '../controls/Segments';
import { Switch } from '../controls/Switch';
import { LogRow } from './LogRow';

type Level = 'all' | 'warn' | 'error';

/** Scrolled up by more than this many pixels, the view no longer follows the newest line. */
const FOLLOW_MARGIN_PX = 24;

/** The lines of a log, with a filter, and a choice of level and learner. */
export function LogView({ state }: { state: IJobState }): React.JSX.Element {
  const { trans, format } = useLanguage();
  const { log } = state;
  const [level, setLevel] = React.useState<Level>('all');
  const [filter, setFilter] = React.useState('');
  const [member, setMember] = React.useState('');
  const [follow, setFollow] = React.useState(true);
  const box = React.useRef<HTMLDivElement>(null);
  const mark = filter.trim().toLowerCase();
  const members = [...new Set(log.rows.map(row => row.member))].filter(m => m >= 0).sort((a, b) => a - b);
  const isShown = (row: ILogRow): boolean =>
    (level === 'all' || row.level === level) &&
    (member === '' || String(row.member) === member) &&
    (!mark || withoutEscapes(row.text).toLowerCase().includes(mark));
  const rows = log.rows.filter(isShown);

  React.useLayoutEffect(() => {
    if (follow && box.current) {
      box.current.scrollTop = box.current.scrollHeight;
    }
  });
  const handleScroll = (event: React.UIEvent<HTMLDivElement>): void => {
    const { scrollTop, scrollHeight, clientHeight } = event.currentTarget;
    setFollow(scrollHeight - scrollTop - clientHeight < FOLLOW_MARGIN_PX);
  };

  return (
    <>
      <div className="jp-dlaas-logbar">
        <Segments
          label={trans.__('Log level')}
          value={level}
          onChange={id => setLevel(id as Level)}
          values={[
            { id: 'all', text: trans.__('All') },
            { id: 'warn', text: trans.__('Warnings'), number: log.warnings },
            { id: 'error', text: trans.__('Errors'), number: log.errors }
          ]}
        />
        <input
          className="jp-dlaas-input jp-dlaas-grow"
          type="search"
          aria-label={trans.__('Filter log lines')}
          placeholder={trans.__('Filter')}
          value={filter}
          onChange={event => setFilter(event.target.value)}
        />
        {members.length > 1 && (
          <select
            className="jp-dlaas-input"
            aria-label={trans.__('Learner')}
            value={member}
            onChange={event => setMember(event.target.value)}
          >
            <option value="">{trans.__('All learners')}</option>
            {members.map(m => (
              <option key={m} value={String(m)}>
                {trans.__('Learner %1', m)}
              </option>
            ))}
          </select>
        )}
        <span className="jp-dlaas-grow" />
        <Switch
          label={trans.__('Follow')}
          title={trans.__('Keep the newest line in view')}
          on={follow}
          onChange={setFollow}
        />
      </div>
      <div
        ref={box}
        className="jp-dlaas-log"
        role="log"
        aria-label={trans.__('Log')}
        aria-live="off"
        tabIndex={0}
        onScroll={handleScroll}
      >
        {log.dropped > 0 && (
          <p>
            {trans._n(
              '%2 earlier line is not kept in this page.',
              '%2 earlier lines are not kept in this page.',
              log.dropped,
              format.count(log.dropped)
            )}
          </p>
        )}
        {rows.map(row => (
          <LogRow key={row.key} row={row} mark={mark} />
        ))}
        {rows.length === 0 && (
          <p>{log.count === 0 ? trans.__('Nothing printed yet.') : trans.__('No line matches.')}</p>
        )}
      </div>
    </>
  );
}
