import * as React from 'react';

import { type TranslationBundle, useLanguage } from '../../language';
import type { IJobState } from '../../model/job';
import type { IAction } from '../../protocol';
import { Button } from '../controls/Button';
import type { IconName } from '../controls/Icon';
import { MoreButton } from '../controls/MoreButton';
import type { ICardHandlers } from '../handlers';
import { ConfirmButton } from './ConfirmButton';

const ICONS: { [id: string]: IconName } = {
  halt: 'halt',
  resume: 'play',
  cancel: 'x',
  retry: 'retry'
};

const CONFIRM_MS = 5000;
/** Time to confirm where there is a sentence to read first. */
const CONFIRM_LOSS_MS = 15_000;
/** A job that trained for less than this is cancelled without a question. */
const CONFIRM_AFTER_S = 60;

/** Say why an action cannot be taken now, or null if it can. */
export function whyDisabled(trans: TranslationBundle, action: IAction, stale: boolean): string | null {
  if (stale) {
    return trans.__('Not connected: trying again.');
  }
  return action.enabled ? null : (action.why_not ?? '');
}

/**
 * The buttons of a card's head: exactly the actions that the server names.
 *
 * While one asks for confirmation, the others are hidden: beside a question, *Cancel* reads as its answer.
 */
export function Actions(props: {
  state: IJobState;
  handlers: ICardHandlers;
  nowS: number;
  stale: boolean;
}): React.JSX.Element {
  const { trans } = useLanguage();
  const { view } = props.state;
  const { handlers, stale } = props;
  const hasTrained = view.started_s !== null && props.nowS - view.started_s >= CONFIRM_AFTER_S;
  const [asking, setAsking] = React.useState<string | null>(null);
  const confirms = ({ id, confirm }: IAction): boolean =>
    (id === 'cancel' && hasTrained) || (id === 'halt' && Boolean(confirm));
  const shown = view.actions.filter(a => a.id !== 'scale' && !(a.id === 'retry' && view.state === 'FAILED'));
  const asked = shown.find(a => a.id === asking && confirms(a) && whyDisabled(trans, a, stale) === null);

  const button = (action: IAction): React.JSX.Element | null => {
    const { id } = action;
    const whyNot = whyDisabled(trans, action, stale);
    const onAsk = (isAsking: boolean): void => setAsking(isAsking ? id : null);
    switch (id) {
      case 'scale':
        return null;
      case 'cancel':
        return (
          <ConfirmButton
            key={id}
            icon="x"
            label={action.label}
            confirmLabel={trans.__('Cancel job')}
            warning={null}
            timeoutMs={CONFIRM_MS}
            confirms={confirms(action)}
            asking={action === asked}
            onAsk={onAsk}
            whyNot={whyNot}
            onConfirm={() => handlers.act('cancel')}
          />
        );
      case 'halt':
        return (
          <ConfirmButton
            key={id}
            icon="halt"
            label={action.label}
            confirmLabel={trans.__('Halt job')}
            warning={action.confirm ?? null}
            timeoutMs={CONFIRM_LOSS_MS}
            confirms={confirms(action)}
            asking={action === asked}
            onAsk={onAsk}
            whyNot={whyNot}
            onConfirm={() => handlers.act('halt')}
          />
        );
      default:
        return (
          <Button
            key={id}
            icon={ICONS[id]}
            label={action.label}
            folds
            primary={id === 'resume'}
            whyNot={whyNot}
            onClick={() => handlers.act(id)}
          />
        );
    }
  };

  return (
    <div className="jp-dlaas-actions" role="group" aria-label={trans.__('Actions for %1', view.id)}>
      {(asked ? [asked] : shown).map(button)}
      <MoreButton label={trans.__('More actions for %1', view.id)} onOpen={handlers.openMenu} />
    </div>
  );
}
