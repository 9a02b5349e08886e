import * as React from 'react';

import { pieces, withoutEscapes } from '../model/ansi';
import type { IJobState } from '../model/job';
import type { ILogRow } from '../model/log';
import { Switch } from './controls';
import * as format from './format';
import { Fold } from './sections';

type Level = 'all' | 'warn' | 'error';

function gist(state: IJobState, nowS: number): string {
  const { log } = state;
  const lines = `${format.count(log.count)} ${log.count === 1 ? 'line' : 'lines'}`;
  const isCopy = log.rows.length > 0 && log.rows[0].member < 0;
  const parts = [isCopy ? `last ${lines}` : lines];
  if (log.warnings) {
    parts.push(`${format.count(log.warnings)} ${log.warnings === 1 ? 'warning' : 'warnings'}`);
  }
  if (log.errors) {
    parts.push(`${format.count(log.errors)} ${log.errors === 1 ? 'error' : 'errors'}`);
  }
  if (log.lastS && state.view.state === 'PROCESSING') {
    parts.push(`last line ${format.ago(nowS - log.lastS)}`);
  }
  return parts.join(' · ');
}

const Row = React.memo(function Row({ row, mark }: { row: ILogRow; mark: string }): React.JSX.Element {
  if (row.skippedBytes !== undefined) {
    return (
      <p>{`${format.bytes(row.skippedBytes)} of learner ${row.member}'s log were passed over: this page was too slow.`}</p>
    );
  }
  const tone = row.level === 'warn' ? 'warn' : row.level === 'error' ? 'bad' : undefined;
  return (
    <div data-tone={tone} data-member={row.member} data-line={row.line}>
      <span>{row.atS ? format.clock(row.atS, true) : ''}</span>
      <span>{row.member >= 0 ? `L${row.member}` : ''}</span>
      <code>
        {tone && <b className="jp-dlaas-hidden">{tone === 'warn' ? 'Warning: ' : 'Error: '}</b>}
        {pieces(row.text).map((piece, i) => (
          <Marked key={i} text={piece.text} look={piece.look} mark={mark} />
        ))}
      </code>
    </div>
  );
});

function Marked(props: { text: string; look: string; mark: string }): React.JSX.Element {
  const { text, mark } = props;
  const at = mark ? text.toLowerCase().indexOf(mark) : -1;
  const shown =
    at < 0 ? (
      text
    ) : (
      <>
        {text.slice(0, at)}
        <mark>{text.slice(at, at + mark.length)}</mark>
        {text.slice(at + mark.length)}
      </>
    );
  const look = props.look
    .split(' ')
    .filter(Boolean)
    .map(l => `jp-dlaas-ansi-${l}`)
    .join(' ');
  return look ? <span className={look}>{shown}</span> : <>{shown}</>;
}

function radioKeys(values: readonly string[], now: string, set: (value: string) => void) {
  return (event: React.KeyboardEvent<HTMLElement>): void => {
    const by =
      event.key === 'ArrowRight' || event.key === 'ArrowDown'
        ? 1
        : event.key === 'ArrowLeft' || event.key === 'ArrowUp'
          ? -1
          : 0;
    if (by) {
      event.preventDefault();
      const next = (values.indexOf(now) + by + values.length) % values.length;
      set(values[next]);
      event.currentTarget.querySelectorAll<HTMLElement>('[role=radio]')[next]?.focus();
    }
  };
}

export function Segments(props: {
  label: string;
  values: readonly { id: string; text: string; number?: number }[];
  value: string;
  onChange: (id: string) => void;
}): React.JSX.Element {
  const ids = props.values.map(v => v.id);
  return (
    <span
      className="jp-dlaas-seg"
      role="radiogroup"
      aria-label={props.label}
      onKeyDown={radioKeys(ids, props.value, props.onChange)}
    >
      {props.values.map(v => (
        <button
          key={v.id}
          type="button"
          role="radio"
          aria-checked={v.id === props.value}
          tabIndex={v.id === props.value ? 0 : -1}
          onClick={() => props.onChange(v.id)}
        >
          {v.text}
          {v.number !== undefined && <small> {format.count(v.number)}</small>}
        </button>
      ))}
    </span>
  );
}

function LogBody({ state }: { state: IJobState }): React.JSX.Element {
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

export function LogFold(props: { state: IJobState; nowS: number; open?: boolean }): React.JSX.Element {
  return (
    <Fold title="Log" gist={gist(props.state, props.nowS)} open={props.open}>
      {() => <LogBody state={props.state} />}
    </Fold>
  );
}
