import * as React from 'react';

import type { IJobState } from '../model/job';
import { isFinal } from '../protocol';
import type { IJobView, INote } from '../protocol';
import { Button, NOT_CONNECTED, Stepper, Switch, shownSize, sizeUnit } from './controls';
import * as format from './format';
import type { ICardHandlers } from './handlers';
import { Icon } from './icons';

export function Banner(props: {
  icon: 'plug' | 'lock' | 'warn' | 'info' | 'back';
  tone: 'idle' | 'warn' | 'bad';
  children: React.ReactNode;
  actions?: React.ReactNode;
}): React.JSX.Element {
  return (
    <div className="jp-dlaas-banner" data-tone={props.tone}>
      <Icon name={props.icon} />
      <div>{props.children}</div>
      {props.actions && <div className="jp-dlaas-actions">{props.actions}</div>}
    </div>
  );
}

/** A sentence of the server, with what stands between backticks as code. */
export function Sentence({ text }: { text: string }): React.JSX.Element {
  return <>{text.split('`').map((part, i) => (i % 2 ? <code key={i}>{part}</code> : part))}</>;
}

/** What a job waits for. */
export function Why({ view }: { view: IJobView }): React.JSX.Element | null {
  if (!view.reason) {
    return null;
  }
  return (
    <dl className="jp-dlaas-why jp-dlaas-block">
      <dt>Waits for</dt>
      <dd>
        <Sentence text={view.reason} />
      </dd>
    </dl>
  );
}

const PHASES = ['QUEUED', 'DEPLOYING', 'DOWNLOADING', 'PROCESSING', 'STORING'] as const;
const PHASE_NAMES = ['Queued', 'Deploying', 'Downloading', 'Processing', 'Storing'];

export function Phases({ view }: { view: IJobView }): React.JSX.Element {
  const now = PHASES.findIndex(p => p === view.state);
  const ready = view.learners.filter(l => l.state === 'Training' || l.state === 'Joining').length;
  const wanted = Math.max(1, view.size.wish);
  const share = view.state === 'DEPLOYING' ? Math.round((100 * ready) / wanted) : 50;
  const queuedS = view.queued_s ?? null;
  return (
    <ol className="jp-dlaas-phases" aria-label="Phases">
      {PHASE_NAMES.map((name, i) => {
        const note =
          i === 0 && now > 0 && queuedS !== null
            ? format.duration(queuedS)
            : i === now && view.state === 'DEPLOYING'
              ? `${ready} of ${wanted} learners ready`
              : '';
        return (
          <li
            key={name}
            data-done={i < now ? '' : undefined}
            aria-current={i === now ? 'step' : undefined}
            style={i === now ? ({ '--v': `${share}%` } as React.CSSProperties) : undefined}
          >
            <b>
              {i < now && <Icon name="check" />} {name}
            </b>
            <span>{note}</span>
          </li>
        );
      })}
    </ol>
  );
}

function spoken(state: IJobState): string {
  const { progress } = state;
  if (!progress) {
    return '';
  }
  const parts = [
    progress.epochs === null ? `Step ${progress.step}` : `Epoch ${progress.epoch} of ${progress.epochs}`,
    progress.fraction === null ? '' : `${Math.round(progress.fraction * 100)} percent`,
    progress.left_s_low !== null && progress.left_s_high !== null
      ? `${format.leftSpoken(progress.left_s_low, progress.left_s_high)} left`
      : ''
  ];
  return parts.filter(Boolean).join(', ');
}

export function ProgressRow(props: { state: IJobState; stale: boolean }): React.JSX.Element | null {
  const { view, progress } = props.state;
  if (!progress) {
    return null;
  }
  const epoch =
    progress.epochs === null
      ? ''
      : `Epoch ${format.count(progress.epoch)} of ${format.count(progress.epochs)}`;
  const countsSteps = progress.step > 0 || !progress.epoch;
  const step = progress.steps
    ? `step ${format.count(progress.step)} of ${format.count(progress.steps)}`
    : `step ${format.count(progress.step)}`;
  const percent = progress.fraction === null ? undefined : Math.round(progress.fraction * 1000) / 10;
  const running = view.state === 'PROCESSING';
  const frozen = !running || props.stale;
  return (
    <div className="jp-dlaas-progress">
      <div className="jp-dlaas-progress-text">
        <span>
          {epoch ? (
            <>
              <b>{epoch}</b>
              {countsSteps && ` · ${step}`}
            </>
          ) : (
            <b>{step.charAt(0).toUpperCase() + step.slice(1)}</b>
          )}
        </span>
        <Remaining state={props.state} stale={props.stale} />
      </div>
      <div
        className="jp-dlaas-bar"
        role="progressbar"
        aria-label="Progress"
        aria-valuemin={0}
        aria-valuemax={100}
        aria-valuenow={percent === undefined ? undefined : Math.round(percent)}
        aria-valuetext={spoken(props.state)}
        data-frozen={frozen ? '' : undefined}
      >
        <i style={{ width: `${percent ?? 0}%` }} />
      </div>
    </div>
  );
}

function Remaining(props: { state: IJobState; stale: boolean }): React.JSX.Element {
  const { view, progress } = props.state;
  if (view.state === 'HALTED') {
    return <span>{`Holds no ${sizeUnit(view)}`}</span>;
  }
  if (isFinal(view.state) || !progress || progress.left_s_low === null || progress.left_s_high === null) {
    const rate =
      view.state === 'PROCESSING' && progress?.steps_per_s
        ? `${format.significant(progress.steps_per_s)} steps/s`
        : '';
    return <span>{rate}</span>;
  }
  const text = `${format.left(progress.left_s_low, progress.left_s_high)} left`;
  if (props.stale) {
    return <span>{text} when last heard</span>;
  }
  if (view.state === 'QUEUED' || view.state === 'DEPLOYING') {
    return <span>{text} once it trains</span>; // nobody knows the end before there is a start
  }
  const ends = format.clockRange(progress.at_s + progress.left_s_low, progress.at_s + progress.left_s_high);
  return (
    <span>
      <b className="jp-dlaas-nowrap">{text}</b> · ends <span className="jp-dlaas-nowrap">{ends}</span>
    </span>
  );
}

/** Who chooses the size, as the reader has it: a press on − or + takes it over. */
function isAuto({ view, wish }: IJobState): boolean {
  return wish.learners === null && (wish.elastic ?? view.elastic) === 'auto';
}

const AUTO =
  'Auto tries sizes while the job trains, keeps the one from which one more brings too little, and gives back when somebody waits';

function scaleText(state: IJobState, stale: boolean): { bold: string; text: string; warn: boolean } {
  const { view, wish } = state;
  const { size } = view;
  const wanted = wish.learners ?? size.wish;
  const unit = sizeUnit(view);
  const show = (n: number): string => String(shownSize(view, n));
  if (stale) {
    return {
      bold: '',
      text: 'Sizes can be changed once connected.',
      warn: false
    };
  }
  if (wish.refusal) {
    const ofAuto = wish.refused === 'auto';
    const bold = ofAuto
      ? `Auto stays ${view.elastic === 'auto' ? 'on' : 'off'}.`
      : `Stayed at ${show(size.wish)}.`;
    // the server counts learners, so it begins with the same words or with another number
    const text = wish.refusal.replace(/^Stayed at \d+\. /, '');
    return { bold, text, warn: true };
  }
  if (wish.unconfirmed) {
    return { bold: '', text: 'Sent, not yet confirmed.', warn: false };
  }
  if (size.held > 0 && wanted !== size.held) {
    const said = view.reason && wish.learners === null ? view.reason : '';
    return {
      bold: `${show(wanted)} wanted, ${show(size.held)} held.`,
      text: said,
      warn: false
    };
  }
  const scale = view.actions.find(a => a.id === 'scale');
  if (scale && !scale.enabled && scale.why_not) {
    return { bold: '', text: scale.why_not, warn: false };
  }
  if (isAuto(state)) {
    const brought = view.speedup ? `${view.speedup}.` : '';
    return { bold: size.held > 0 ? `Auto holds ${show(size.held)}.` : '', text: brought, warn: false };
  }
  if (wanted >= size.max && size.max > size.min) {
    return {
      bold: '',
      text: `${show(size.max)} is the most this job asked for.`,
      warn: false
    };
  }
  if (view.state === 'HALTED') {
    return {
      bold: '',
      text: `Resumes with ${show(wanted)} ${format.units(unit, shownSize(view, wanted))}.`,
      warn: false
    };
  }
  // nothing is to be said of the wish: what more learners brought so far
  return { bold: '', text: view.speedup ? `${view.speedup}.` : '', warn: false };
}

/** The scale control with what the pool says to the wish. */
export function ScaleBar(props: {
  state: IJobState;
  handlers: ICardHandlers;
  stale: boolean;
}): React.JSX.Element | null {
  const { view, wish } = props.state;
  const { size } = view;
  const scale = view.actions.find(a => a.id === 'scale');
  if (!scale) {
    return null;
  }
  const wanted = wish.learners ?? size.wish;
  const said = scaleText(props.state, props.stale);
  const back = size.held > 0 && wanted !== size.held && size.held >= size.min && !props.stale;
  return (
    <div className="jp-dlaas-scalebar">
      <span className="jp-dlaas-scale">
        <span className="jp-dlaas-scale-label" aria-hidden="true">
          {format.units(sizeUnit(view), 2)}
        </span>
        <Stepper state={props.state} onScale={props.handlers.scale} stale={props.stale} />
        <span className="jp-dlaas-nowrap">
          {size.min === size.max ? 'fixed' : `${shownSize(view, size.min)}–${shownSize(view, size.max)}`}
        </span>
        {size.min < size.max && view.elastic !== 'off' && (
          <Switch
            label="Auto"
            title={AUTO}
            on={isAuto(props.state)}
            whyNot={props.stale ? NOT_CONNECTED : scale.enabled ? null : scale.why_not}
            onChange={on => props.handlers.setElastic(on ? 'auto' : 'manual')}
          />
        )}
      </span>
      <span className="jp-dlaas-grow jp-dlaas-small" data-tone={said.warn ? 'warn' : undefined}>
        {said.warn && <Icon name="warn" marked />} {said.bold && <b>{said.bold}</b>} {said.text}
      </span>
      {back && (
        <Button
          icon="back"
          label={`${wanted > size.held ? 'Stay at' : 'Back to'} ${shownSize(view, size.held)}`}
          onClick={() => props.handlers.scale(size.held)}
        />
      )}
    </div>
  );
}

/** A part of the card that folds; its summary line says the gist. */
export function Fold(props: {
  title: string;
  gist: string;
  open?: boolean;
  children: () => React.ReactNode;
}): React.JSX.Element {
  const [open, setOpen] = React.useState(props.open ?? false);
  return (
    <details className="jp-dlaas-fold" open={open} onToggle={event => setOpen(event.currentTarget.open)}>
      <summary>
        <Icon name="right" />
        <b>{props.title}</b>
        <span className="jp-dlaas-dim jp-dlaas-grow">{props.gist}</span>
      </summary>
      <div>{open && props.children()}</div>
    </details>
  );
}

function learnersGist(view: IJobView): string {
  const words = new Map<string, number>();
  for (const learner of view.learners) {
    const word = learner.state.toLowerCase();
    words.set(word, (words.get(word) ?? 0) + 1);
  }
  if (words.size === 1 && words.has('training')) {
    return `${view.learners.length} of ${view.size.wish} training`;
  }
  return [...words].map(([word, n]) => `${n} ${word}`).join(' · ');
}

export function Learners({ view }: { view: IJobView }): React.JSX.Element | null {
  if (view.learners.length === 0) {
    return null;
  }
  return (
    <Fold title="Learners" gist={learnersGist(view)}>
      {() => (
        <table className="jp-dlaas-table">
          <caption className="jp-dlaas-hidden">Learners</caption>
          <thead>
            <tr>
              <th scope="col">Learner</th>
              <th scope="col">Node</th>
              <th scope="col">Device</th>
              <th scope="col" className="jp-dlaas-num jp-dlaas-wide">
                Rank
              </th>
              <th scope="col">State</th>
            </tr>
          </thead>
          <tbody>
            {view.learners.map(learner => (
              <tr key={learner.member}>
                <th scope="row">{learner.member}</th>
                <td>{learner.node}</td>
                <td>{learner.devices.join(', ') || '–'}</td>
                <td className="jp-dlaas-num jp-dlaas-wide">{learner.rank}</td>
                <td>{learner.state}</td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
    </Fold>
  );
}

export function Notes({ notes }: { notes: readonly INote[] }): React.JSX.Element | null {
  if (notes.length === 0) {
    return null;
  }
  const gist =
    notes.length === 1
      ? notes[0].text.replace(/`/g, '').split('\n')[0]
      : `${notes.length} about what was sent`;
  return (
    <Fold title="Notes" gist={gist}>
      {() => (
        <ul className="jp-dlaas-notes">
          {notes.map((note, i) => (
            <li key={i}>
              <Sentence text={note.text} />
            </li>
          ))}
        </ul>
      )}
    </Fold>
  );
}

interface IFact {
  label: string;
  value: string;
  small: string;
}

function resizeFact(view: IJobView): IFact | null {
  if (view.resizes.length === 0) {
    return null;
  }
  const idleS = view.resizes.reduce((sum, r) => sum + (r.idle_s ?? 0), 0);
  return {
    label: 'Resizes',
    value: format.count(view.resizes.length),
    small: idleS > 0 ? `${format.duration(idleS)} of pause in all` : ''
  };
}

/** Label over value: what a halted or ended job came to. */
export function Facts(props: { state: IJobState; nowS: number }): React.JSX.Element | null {
  const { view, curves } = props.state;
  const facts: (IFact | null)[] = [];
  if (view.state === 'HALTED' && typeof view.checkpoint_step === 'number') {
    facts.push({
      label: 'Checkpoint',
      value: `step ${format.count(view.checkpoint_step)}`,
      small: ''
    });
  }
  if (isFinal(view.state) && view.ended_s !== null) {
    const queued = view.queued_s ?? null;
    const trained = view.started_s === null ? null : view.ended_s - view.started_s;
    const isWhole = queued !== null && view.started_s !== null && !view.interruptions?.length;
    const deployed = isWhole ? Math.max(0, view.started_s! - view.submitted_s - queued) : null;
    facts.push({
      label: 'Took',
      value: format.duration(view.ended_s - view.submitted_s),
      small:
        queued === null || trained === null
          ? ''
          : [
              `queued ${format.duration(queued)}`,
              deployed === null ? '' : `deployed in ${format.duration(deployed)}`,
              `ran ${format.duration(trained)}`
            ]
              .filter(Boolean)
              .join(', ')
    });
  }
  for (const [name, points] of [...curves].slice(0, 3)) {
    const values = points.map(p => p[2]);
    const kind = format.metricKind(name, values);
    const best = kind === 'loss' ? Math.min(...values) : Math.max(...values);
    facts.push({
      label: format.metricLabel(name),
      value: format.metricValue(kind, values[values.length - 1]),
      small: kind === 'other' ? '' : `best ${format.metricValue(kind, best)}`
    });
  }
  facts.push(resizeFact(view));
  if (view.speedup) {
    facts.push({ label: 'Speed', value: view.speedup, small: '' });
  }
  if (view.restarts > 0) {
    facts.push({
      label: 'Restarts',
      value: format.count(view.restarts),
      small: typeof view.checkpoint_step !== 'number' ? 'from the start' : 'from the last checkpoint'
    });
  }
  const shown = facts.filter((f): f is IFact => f !== null);
  if (shown.length === 0) {
    return null;
  }
  return (
    <dl className="jp-dlaas-facts">
      {shown.map(fact => (
        <div key={fact.label}>
          <dt>{fact.label}</dt>
          <dd>
            {fact.value}
            {fact.small && <small>{fact.small}</small>}
          </dd>
        </div>
      ))}
    </dl>
  );
}

export function Results({ view }: { view: IJobView }): React.JSX.Element | null {
  if (view.state !== 'COMPLETED' || view.results.length === 0) {
    return null;
  }
  return (
    <div className="jp-dlaas-block">
      <ul className="jp-dlaas-list" aria-label="Results">
        {view.results.map(name => (
          <li key={name}>
            <code>{name}</code>
            <span className="jp-dlaas-dim">
              <code>{`dlaas.job("${view.id}").result("${name}")`}</code>
            </span>
            <span>
              <Icon name="check" /> can be loaded
            </span>
          </li>
        ))}
      </ul>
    </div>
  );
}
