import * as React from 'react';

import type { IJobState } from '../model/job';
import { isFinal, isReport } from '../protocol';
import { Actions, Button } from './controls';
import { MakeElastic, isSuggestion } from './elastic';
import { Failure, FailureFoot, Traceback } from './failure';
import * as format from './format';
import type { ICardHandlers } from './handlers';
import { Icon, Swatch, stateIcon } from './icons';
import { LogFold } from './log';
import { Pictures } from './pictures';
import {
  Banner,
  Facts,
  Fold,
  Learners,
  Notes,
  Phases,
  ProgressRow,
  Results,
  ScaleBar,
  Sentence,
  Why
} from './sections';
import { Tracks } from './tracks';

export interface IJobCardProps {
  state: IJobState;
  handlers: ICardHandlers;
  nowS: number;
  /** False in a notebook that is not trusted, until the reader allowed this card to ask the server. */
  allowed: boolean;
  /** Name of the pool that the notebook's copy tells of, where it is another one than this server's. */
  otherPool?: string;
}

const SPEAK_EVERY_MS = 5000;
/** So long a banner tells of an interruption that is over. */
const TOLD_S = 600;

/** Speaks changes of state, at most once in five seconds. */
function Spoken({ text }: { text: string }): React.JSX.Element {
  const [said, say] = React.useState('');
  const last = React.useRef({ text, at: 0 });
  React.useEffect(() => {
    if (text === last.current.text) {
      return;
    }
    const wait = Math.max(0, last.current.at + SPEAK_EVERY_MS - Date.now());
    const timer = window.setTimeout(() => {
      last.current = { text, at: Date.now() };
      say(text);
    }, wait);
    return () => window.clearTimeout(timer);
  }, [text]);
  return (
    <div className="jp-dlaas-hidden" role="status" aria-live="polite">
      {said}
    </div>
  );
}

function ConnectionBanner(props: {
  state: IJobState;
  nowS: number;
  handlers: ICardHandlers;
}): React.JSX.Element {
  const { connection, view } = props.state;
  const again = <Button icon="retry" label="Try now" onClick={props.handlers.retryConnection} />;
  if (connection.kind === 'absent') {
    return (
      <Banner icon="plug" tone="idle" actions={again}>
        This Jupyter server has no training part: the card shows what the notebook kept.
      </Banner>
    );
  }
  const retry =
    connection.retryS !== null && connection.retryS > props.nowS
      ? ` Trying again in ${Math.max(1, Math.round(connection.retryS - props.nowS))} s.`
      : ' Trying again now.';
  return (
    <Banner icon="plug" tone="idle" actions={again}>
      <b>{`Last heard ${format.ago(props.nowS - connection.heardS)}.`}</b>
      {isFinal(view.state) ? '' : ' The job goes on without this page.'}
      {retry}
    </Banner>
  );
}

function Notices(props: IJobCardProps & { stale: boolean }): React.JSX.Element | null {
  const { state, handlers } = props;
  const { view } = state;
  if (props.otherPool !== undefined) {
    return (
      <Banner icon="info" tone="idle">
        {`This job is of another pool${props.otherPool ? `, ${props.otherPool}` : ''}: the card shows what the notebook kept.`}
      </Banner>
    );
  }
  if (!props.allowed) {
    return (
      <Banner
        icon="lock"
        tone="idle"
        actions={<Button label="Allow for this job" onClick={handlers.allow} />}
      >
        This notebook is not trusted. The card shows what the file says and does nothing until you allow it.
      </Banner>
    );
  }
  if (state.gone) {
    return (
      <Banner icon="info" tone="idle">
        Removed from this pool: the card shows what the notebook kept.
      </Banner>
    );
  }
  if (props.stale || (state.connection.kind === 'absent' && !isFinal(view.state))) {
    return <ConnectionBanner state={state} nowS={props.nowS} handlers={handlers} />;
  }
  if (state.problem) {
    return (
      <Banner icon="warn" tone="warn">
        {state.problem}
      </Banner>
    );
  }
  const waits = view.state === 'QUEUED';
  if (view.reason && !waits && view.state !== 'FAILED' && view.transition !== 'scaling') {
    return (
      <Banner icon={view.tone === 'warn' ? 'warn' : 'info'} tone={view.tone === 'warn' ? 'warn' : 'idle'}>
        {view.reason}
      </Banner>
    );
  }
  const last = view.interruptions?.at(-1);
  if (last && last.by !== 'halted' && !isFinal(view.state) && view.state !== 'HALTED') {
    const { to_s: toS } = last;
    if (toS === null ? waits : props.nowS - toS < TOLD_S) {
      return (
        <Banner icon={last.by === 'preempted' ? 'back' : 'warn'} tone="warn">
          {last.text}
        </Banner>
      );
    }
  }
  return null;
}

function metricsGist(state: IJobState): string {
  return [...state.curves]
    .slice(0, 3)
    .map(([name, points]) => {
      const values = points.map(p => p[2]);
      const value = values[values.length - 1];
      return `${format.metricLabel(name).toLowerCase()} ${format.metricValue(format.metricKind(name, values), value)}`;
    })
    .join(' · ');
}

function Body(props: IJobCardProps & { stale: boolean }): React.JSX.Element {
  const { state, handlers, stale, nowS } = props;
  const { view } = state;
  const starting = view.state === 'DEPLOYING' || view.state === 'DOWNLOADING' || view.state === 'STORING';
  const ended = isFinal(view.state);
  const drawn = state.curves.size > 0;
  // a restarting job carries the failure it recovers from; its reason says so
  const failure = view.state === 'FAILED' ? view.failure : null;
  return (
    <>
      {view.state === 'QUEUED' && <Why view={view} />}
      {failure && (
        <>
          <div className="jp-dlaas-alert" role="alert">
            <Failure failure={failure} />
          </div>
          <FailureFoot view={view} failure={failure} handlers={handlers} stale={stale} />
        </>
      )}
      {view.notes.filter(isReport).map((note, i) => (
        <Banner key={i} icon="warn" tone="warn">
          <Sentence text={note.text} />
        </Banner>
      ))}
      {starting && !state.progress && <Phases view={view} />}
      {!ended && <ProgressRow state={state} stale={stale} />}
      {!ended && <ScaleBar state={state} handlers={handlers} stale={stale} />}
      {(view.state === 'HALTED' || view.state === 'COMPLETED') && <Facts state={state} nowS={nowS} />}
      <Results view={view} />
      {drawn &&
        (ended || view.state === 'HALTED' ? (
          <Fold title="Metrics" gist={metricsGist(state)} open={view.state === 'COMPLETED'}>
            {() => <Tracks state={state} />}
          </Fold>
        ) : (
          <Tracks state={state} />
        ))}
      {props.allowed && props.otherPool === undefined && !state.gone && (
        <Pictures state={state} handlers={handlers} />
      )}
      {!ended && <Learners view={view} />}
      {failure && <Traceback failure={failure} />}
      <MakeElastic notes={view.notes} handlers={handlers} />
      <Notes notes={view.notes.filter(note => !isReport(note) && !isSuggestion(view.notes, note))} />
      {(state.log.count > 0 || view.state === 'PROCESSING') && <LogFold state={state} nowS={nowS} />}
    </>
  );
}

/** A job, whole. The same card stands in a cell's output and wherever else a job is shown. */
export function JobCard(props: IJobCardProps): React.JSX.Element {
  const { state, handlers } = props;
  const { view } = state;
  const onServer = props.allowed && props.otherPool === undefined && !state.gone;
  const stale = onServer && state.connection.stale && state.connection.kind !== 'absent';
  const off = stale || state.connection.kind === 'absent';
  const quiet = stale && !isFinal(view.state);
  const tone = quiet ? 'idle' : view.tone;
  return (
    <section
      className="jp-dlaas jp-dlaas-card"
      role="region"
      aria-label={`Job ${view.id}`}
      data-status={view.state.toLowerCase()}
      data-live={state.live ? '' : undefined}
    >
      <header className="jp-dlaas-head">
        <Swatch number={view.number} />
        <h3 className="jp-dlaas-name">{view.id}</h3>
        <span className="jp-dlaas-status" data-tone={tone}>
          <Icon name={stateIcon(view)} />
          {view.state_label}
        </span>
        <p className="jp-dlaas-gist">{view.status_line}</p>
        {props.otherPool === undefined && !state.gone && (
          <Actions state={state} handlers={handlers} nowS={props.nowS} stale={off} />
        )}
      </header>
      <Notices {...props} stale={quiet} />
      <Body {...props} stale={off} />
      <Spoken text={`${view.id}: ${view.state_label}. ${view.status_line}`} />
    </section>
  );
}
