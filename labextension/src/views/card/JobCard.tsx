import * as React from 'react';

import { metricKind } from '../../format';
import { type ILanguage, useLanguage } from '../../language';
import type { IJobState } from '../../model/job';
import { isFinal, isReport } from '../../protocol';
import { Banner } from '../controls/Banner';
import { Fold } from '../controls/Fold';
import { Icon, stateIcon, Swatch } from '../controls/Icon';
import { Sentence } from '../controls/Sentence';
import type { ICardHandlers } from '../handlers';
import { LogFold } from '../log/LogFold';
import { Tracks } from '../metrics/Tracks';
import { Actions } from './Actions';
import { ElasticSuggestion, isSuggestion } from './ElasticSuggestion';
import { Facts } from './Facts';
import { Failure, FailureActions, Traceback } from './Failure';
import { Learners } from './Learners';
import { LiveRegion } from './LiveRegion';
import { Notes } from './Notes';
import { Notices } from './Notices';
import { Phases } from './Phases';
import { Pictures } from './Pictures';
import { ProgressRow } from './ProgressRow';
import { QueueReason } from './QueueReason';
import { Results } from './Results';
import { ScaleBar } from './ScaleBar';

export interface IJobCardProps {
  state: IJobState;
  handlers: ICardHandlers;
  nowS: number;
  /** False in a notebook that is not trusted, until the user allows this card to contact the server. */
  allowed: boolean;
  /** Name of the pool of the saved state, if it is not this server's pool. */
  otherPool?: string;
}

/** Summarise the last values of the first curves. */
function metricsGist({ format }: ILanguage, state: IJobState): string {
  return [...state.curves]
    .slice(0, 3)
    .map(([name, points]) => {
      const values = points.map(p => p[2]);
      const text = format.metricValue(metricKind(name, values), values[values.length - 1]);
      return `${format.metricLabel(name).toLowerCase()} ${text}`;
    })
    .join(' · ');
}

function Body(props: IJobCardProps & { stale: boolean }): React.JSX.Element {
  const language = useLanguage();
  const { state, handlers, stale, nowS } = props;
  const { view } = state;
  const isStarting = view.state === 'DEPLOYING' || view.state === 'DOWNLOADING' || view.state === 'STORING';
  const hasEnded = isFinal(view.state);
  // a restarting job carries the failure it recovers from; its reason says so
  const failure = view.state === 'FAILED' ? view.failure : null;
  const notes = view.notes.filter(note => !isReport(note) && !isSuggestion(view.notes, note));
  return (
    <>
      {view.state === 'QUEUED' && <QueueReason view={view} />}
      {failure && (
        <>
          <div className="jp-dlaas-alert" role="alert">
            <Failure failure={failure} />
          </div>
          <FailureActions view={view} failure={failure} handlers={handlers} stale={stale} />
        </>
      )}
      {view.notes.filter(isReport).map((note, i) => (
        <Banner key={i} icon="warn" tone="warn">
          <Sentence text={note.text} />
        </Banner>
      ))}
      {isStarting && !state.progress && <Phases view={view} />}
      {!hasEnded && <ProgressRow state={state} stale={stale} />}
      {!hasEnded && <ScaleBar state={state} handlers={handlers} stale={stale} />}
      {(view.state === 'HALTED' || view.state === 'COMPLETED') && <Facts state={state} />}
      <Results view={view} />
      {state.curves.size > 0 &&
        (hasEnded || view.state === 'HALTED' ? (
          <Fold
            title={language.trans.__('Metrics')}
            gist={metricsGist(language, state)}
            open={view.state === 'COMPLETED'}
          >
            {() => <Tracks state={state} />}
          </Fold>
        ) : (
          <Tracks state={state} />
        ))}
      {props.allowed && props.otherPool === undefined && !state.gone && (
        <Pictures state={state} handlers={handlers} />
      )}
      {!hasEnded && <Learners view={view} />}
      {failure && <Traceback failure={failure} />}
      <ElasticSuggestion notes={view.notes} handlers={handlers} />
      <Notes notes={notes} />
      {(state.log.count > 0 || view.state === 'PROCESSING') && <LogFold state={state} nowS={nowS} />}
    </>
  );
}

/** A job. The same card stands in a cell's output, in a tab, and wherever else a job is shown. */
export function JobCard(props: IJobCardProps): React.JSX.Element {
  const { trans } = useLanguage();
  const { state, handlers } = props;
  const { view } = state;
  const isOnServer = props.allowed && props.otherPool === undefined && !state.gone;
  const stale = isOnServer && state.connection.stale && state.connection.kind !== 'absent';
  const isOffline = stale || state.connection.kind === 'absent';
  const isQuiet = stale && !isFinal(view.state);
  return (
    <section
      className="jp-dlaas jp-dlaas-card"
      role="region"
      aria-label={trans.__('Job %1', view.id)}
      data-job={view.id}
      data-status={view.state.toLowerCase()}
      data-live={state.live ? '' : undefined}
    >
      <header className="jp-dlaas-head">
        <Swatch number={view.number} />
        <h3 className="jp-dlaas-name">{view.id}</h3>
        <span className="jp-dlaas-status" data-tone={isQuiet ? 'idle' : view.tone}>
          <Icon name={stateIcon(view)} />
          {view.state_label}
        </span>
        <p className="jp-dlaas-gist">{view.status_line}</p>
        {props.otherPool === undefined && !state.gone && (
          <Actions state={state} handlers={handlers} nowS={props.nowS} stale={isOffline} />
        )}
      </header>
      <Notices {...props} stale={isQuiet} />
      <Body {...props} stale={isOffline} />
      <LiveRegion text={`${view.id}: ${view.state_label}. ${view.status_line}`} />
    </section>
  );
}
