import * as React from 'react';

import { useLanguage } from '../../language';
import { Button } from '../controls/Button';
import type { IconName } from '../controls/Icon';

interface IConfirmButtonProps {
  icon: IconName;
  label: string;
  /** Label of the button that confirms. */
  confirmLabel: string;
  /** Sentence that says what the action loses, if anything. */
  warning: string | null;
  /** Time to confirm. */
  timeoutMs: number;
  /** False: act at the first press. */
  confirms: boolean;
  /** True while the question is shown. */
  asking: boolean;
  onAsk: (asking: boolean) => void;
  whyNot: string | null;
  onConfirm: () => void;
}

/** A button that asks in place: for a few seconds it turns into a confirming button and *Keep*. */
export function ConfirmButton(props: IConfirmButtonProps): React.JSX.Element {
  const { trans } = useLanguage();
  const { asking, onAsk, timeoutMs } = props;
  const ask = React.useRef(onAsk);
  ask.current = onAsk;
  React.useEffect(() => {
    if (!asking) {
      return;
    }
    const timer = window.setTimeout(() => ask.current(false), timeoutMs);
    return () => window.clearTimeout(timer);
  }, [asking, timeoutMs]);

  if (!asking) {
    return (
      <Button
        icon={props.icon}
        label={props.label}
        folds
        whyNot={props.whyNot}
        onClick={() => (props.confirms ? onAsk(true) : props.onConfirm())}
      />
    );
  }
  return (
    <>
      {props.warning !== null && (
        <span className="jp-dlaas-asking" role="alert">
          {props.warning}
        </span>
      )}
      <Button
        icon={props.icon}
        label={props.confirmLabel}
        onClick={() => {
          onAsk(false);
          props.onConfirm();
        }}
      />
      <Button label={trans.__('Keep')} onClick={() => onAsk(false)} />
    </>
  );
}
