import * as React from 'react';

import type { IJobState } from '../../model/job';
import { isFinal, isReport } from '../../protocol';
import { Banner } from '../controls/Banner';
import { Fold } from '../controls/Fold';
import { Icon, stateIcon, Swatch } from '../controls/Icon';
import { Sentence } from '../controls/Sentence';
import * as format from '../format';
import type { ICardHandlers } from '../handlers';
import { LogFold } from '../log/LogFold';
import { Tracks } from '../metrics/Tracks';
import { Actions } from './Actions';
import { isSuggestion, MakeElastic } from './ElasticSuggestion';
import { Facts } from './Facts';
import { Failure, FailureFoot, Traceback } from './Failure';
import { Learners } from './Learners';
import { Spoken } from './LiveRegion';
import { Notes } from './Notes';
import { Notices } from './Notices';
import { Phases } from './Phases';
import { Pictures } from './Pictures';
import { ProgressRow } from './ProgressRow';
import { Why } from './QueueReason';
import { Results } from './Results';
import { ScaleBar } from './ScaleBar';

export interface IJobCardProps {
  state: IJobState;
  handlers: ICardHandlers;
  nowS: number;
  /** False in a notebook that is not trusted, until the reader allowed this card to ask the server. */
  allowed: boolean;
  /** Name of the pool that the notebook's copy tells of, where it is another one than this server's. */
  otherPool?: string;
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
