import * as React from 'react';

import type { IJobState } from '../model/job';
import type { IAction, IJobView } from '../protocol';
import type { ICardHandlers } from './handlers';
import { Icon, type IconName } from './icons';
import { units } from './format';

interface IButtonProps {
  icon?: IconName;
  label: string;
  onClick: (event: React.MouseEvent<HTMLButtonElement>) => void;
  primary?: boolean;
  /** The button shrinks to its icon where the card is narrow. */
  folds?: boolean;
  whyNot?: string | null;
  name?: string;
}

/** A button that stays focusable when it cannot act, and then says why. */
export function Button(props: IButtonProps): React.JSX.Element {
  const id = React.useId();
  const off = props.whyNot !== undefined && props.whyNot !== null;
  return (
    <button
      type="button"
      className="jp-dlaas-button"
      data-primary={props.primary ? '' : undefined}
      data-fold-label={props.folds ? '' : undefined}
      aria-disabled={off || undefined}
      aria-describedby={off && props.whyNot ? id : undefined}
      aria-label={props.name}
      title={off && props.whyNot ? props.whyNot : undefined}
      onClick={event => {
        if (!off) {
          props.onClick(event);
        }
      }}
    >
      {props.icon && <Icon name={props.icon} />}
      <span>{props.label}</span>
      {off && props.whyNot && (
        <span id={id} hidden>
          {props.whyNot}
        </span>
      )}
    </button>
  );
}

const ACTION_ICONS: { [id: string]: IconName } = {
  halt: 'halt',
  resume: 'play',
  cancel: 'x',
  retry: 'retry'
};

export const NOT_CONNECTED = 'Not connected: trying again.';

function whyNot(action: IAction, stale: boolean): string | null {
  return stale ? NOT_CONNECTED : action.enabled ? null : (action.why_not ?? '');
}

const KEEP_MS = 5000;
/** Longer where there is a sentence to read. */
const KEEP_LOST_MS = 15000;

/** A button that asks in place: it turns to `yes` and `Keep` for a few seconds. */
function AskingButton(props: {
  action: IAction;
  icon: IconName;
  yes: string;
  /** What is lost by it, where that needs to be said. */
  lost: string | null;
  keepMs: number;
  asks: boolean;
  stale: boolean;
  onYes: () => void;
}): React.JSX.Element {
  const [asking, setAsking] = React.useState(false);
  const { keepMs } = props;
  React.useEffect(() => {
    if (!asking) {
      return;
    }
    const timer = window.setTimeout(() => setAsking(false), keepMs);
    return () => window.clearTimeout(timer);
  }, [asking, keepMs]);
  if (asking && props.asks && props.action.enabled && !props.stale) {
    return (
      <>
        {props.lost !== null && (
          <span className="jp-dlaas-asking" role="alert">
            {props.lost}
          </span>
        )}
        <Button
          icon={props.icon}
          label={props.yes}
          onClick={() => {
            setAsking(false);
            props.onYes();
          }}
        />
        <Button label="Keep" onClick={() => setAsking(false)} />
      </>
    );
  }
  return (
    <Button
      icon={props.icon}
      label={props.action.label}
      folds
      whyNot={whyNot(props.action, props.stale)}
      onClick={() => (props.asks ? setAsking(true) : props.onYes())}
    />
  );
}

/** The buttons of a card's head: exactly the actions that the server names. */
export function Actions(props: {
  state: IJobState;
  handlers: ICardHandlers;
  nowS: number;
  stale: boolean;
}): React.JSX.Element {
  const { view } = props.state;
  const ranLittle = view.started_s === null || props.nowS - view.started_s < 60;
  const shown = view.actions.filter(a => a.id !== 'scale' && !(a.id === 'retry' && view.state === 'FAILED'));
  return (
    <div className="jp-dlaas-actions" role="group" aria-label={`Actions for ${view.id}`}>
      {shown.map(action =>
        action.id === 'cancel' ? (
          <AskingButton
            key={action.id}
            action={action}
            icon="x"
            yes="Cancel job"
            lost={null}
            keepMs={KEEP_MS}
            asks={!ranLittle}
            stale={props.stale}
            onYes={() => props.handlers.act('cancel')}
          />
        ) : action.id === 'halt' ? (
          <AskingButton
            key={action.id}
            action={action}
            icon="halt"
            yes="Halt job"
            lost={action.confirm ?? null}
            keepMs={KEEP_LOST_MS}
            asks={Boolean(action.confirm)}
            stale={props.stale}
            onYes={() => props.handlers.act('halt')}
          />
        ) : (
          <Button
            key={action.id}
            icon={ACTION_ICONS[action.id]}
            label={action.label}
            folds
            primary={action.id === 'resume'}
            whyNot={whyNot(action, props.stale)}
            onClick={() => {
              if (action.id !== 'scale') {
                props.handlers.act(action.id);
              }
            }}
          />
        )
      )}
      <MoreButton label={`More actions for ${view.id}`} onOpen={props.handlers.openMenu} />
    </div>
  );
}

export function MoreButton(props: {
  label: string;
  onOpen: (anchor: HTMLElement) => void;
}): React.JSX.Element {
  return (
    <button
      type="button"
      className="jp-dlaas-button"
      data-bare=""
      aria-label={props.label}
      aria-haspopup="menu"
      onClick={event => props.onOpen(event.currentTarget)}
    >
      <Icon name="more" />
    </button>
  );
}

export function Switch(props: {
  label: string;
  title: string;
  on: boolean;
  whyNot?: string | null;
  onChange: (on: boolean) => void;
}): React.JSX.Element {
  const off = props.whyNot ?? null;
  return (
    <button
      type="button"
      className="jp-dlaas-switch"
      role="switch"
      aria-checked={props.on}
      aria-disabled={off !== null || undefined}
      title={off ?? props.title}
      onClick={() => off === null && props.onChange(!props.on)}
    >
      <i aria-hidden="true" />
      {props.label}
    </button>
  );
}

/** Size as the user sees it: in devices, which is learners times devices per learner. */
export function shownSize(view: IJobView, learners: number): number {
  return learners * Math.max(1, view.gpus_per_learner);
}

export function sizeUnit(view: IJobView): string {
  return view.gpus_per_learner === 0 ? 'learner' : view.unit;
}

/** − number +: the number is the wish; what the job holds stands left of an arrow while the two differ. */
export function Stepper(props: {
  state: IJobState;
  onScale: (learners: number) => void;
  stale: boolean;
  small?: boolean;
}): React.JSX.Element {
  const { view, wish } = props.state;
  const { size } = view;
  const [typed, setTyped] = React.useState('');
  const wanted = wish.learners ?? size.wish;
  const action = view.actions.find(a => a.id === 'scale');
  const off = props.stale
    ? NOT_CONNECTED
    : action?.enabled
      ? null
      : (action?.why_not ?? 'The size is fixed.');
  const running = size.held > 0;
  const differs = running && size.held !== wanted;
  const step = Math.max(1, view.gpus_per_learner);
  const unit = sizeUnit(view);
  const name = `${units(unit, 2)} of ${view.id}`;
  const show = (learners: number): number => shownSize(view, learners);

  const go = (learners: number): void => {
    const bounded = Math.min(size.max, Math.max(size.min, learners));
    if (off === null && bounded !== wanted) {
      props.onScale(bounded);
    }
  };
  const onKey = (event: React.KeyboardEvent): void => {
    const keys: { [key: string]: number } = {
      ArrowUp: wanted + 1,
      ArrowRight: wanted + 1,
      ArrowDown: wanted - 1,
      ArrowLeft: wanted - 1,
      Home: size.min,
      End: size.max
    };
    if (event.key in keys) {
      setTyped('');
      go(keys[event.key]);
    } else if (/^\d$/.test(event.key)) {
      setTyped((typed + event.key).slice(-6));
    } else if (event.key === 'Backspace' && typed) {
      setTyped(typed.slice(0, -1));
    } else if (event.key === 'Enter' && typed) {
      go(Math.round(Number(typed) / step));
      setTyped('');
    } else if (event.key === 'Escape' && (typed || differs)) {
      setTyped('');
      if (!typed) {
        go(size.held);
      }
      event.stopPropagation();
    } else {
      return;
    }
    event.preventDefault();
  };
  const most = show(Math.max(size.max, size.held));
  const end = (label: string, icon: IconName, to: number, bound: boolean): React.JSX.Element => (
    <button
      type="button"
      aria-label={label}
      aria-disabled={off !== null || bound || undefined}
      title={
        off ??
        (bound
          ? `${show(wanted)} is the ${icon === 'plus' ? 'most' : 'least'} this job asked for.`
          : undefined)
      }
      onClick={() => go(to)}
    >
      <Icon name={icon} />
    </button>
  );
  return (
    <span
      className="jp-dlaas-stepper"
      role="group"
      aria-label={name}
      data-pending={differs || wish.learners !== null ? '' : undefined}
      data-small={props.small ? '' : undefined}
    >
      {end(`Remove a ${unit} from ${view.id}`, 'minus', wanted - 1, wanted <= size.min)}
      <span
        role="spinbutton"
        tabIndex={0}
        aria-label={name}
        aria-valuemin={show(size.min)}
        aria-valuemax={show(size.max)}
        aria-valuenow={show(wanted)}
        aria-valuetext={differs ? `${show(size.held)} now, ${show(wanted)} wanted` : undefined}
        aria-disabled={off !== null || undefined}
        data-widest={size.min < size.max ? `${most} → ${most}` : undefined}
        onKeyDown={onKey}
        onBlur={() => setTyped('')}
      >
        <span>
          {typed ? (
            typed
          ) : (
            <>
              {differs && <i>{show(size.held)} →</i>} {show(wanted)}
            </>
          )}
        </span>
      </span>
      {end(`Add a ${unit} to ${view.id}`, 'plus', wanted + 1, wanted >= size.max)}
    </span>
  );
}
