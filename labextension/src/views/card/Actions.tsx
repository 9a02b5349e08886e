import * as React from 'react';

import type { IJobState } from '../../model/job';
import type { IAction } from '../../protocol';
import { Button, NOT_CONNECTED } from '../controls/Button';
import type { IconName } from '../controls/Icon';
import { MoreButton } from '../controls/MoreButton';
import type { ICardHandlers } from '../handlers';

const ACTION_ICONS: { [id: string]: IconName } = {
  halt: 'halt',
  resume: 'play',
  cancel: 'x',
  retry: 'retry'
};

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
