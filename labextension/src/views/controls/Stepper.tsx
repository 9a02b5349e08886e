import * as React from 'react';

import { type ILanguage, useLanguage } from '../../language';
import type { IJobState } from '../../model/job';
import { shownSize, sizeUnit } from '../../model/size';
import type { IJobView } from '../../protocol';
import { Icon } from './Icon';

interface IStepperProps {
  state: IJobState;
  onScale: (learners: number) => void;
  stale: boolean;
  small?: boolean;
}

/** Say why the size cannot be changed now, or null if it can. */
function whyFixed({ trans }: ILanguage, view: IJobView, stale: boolean): string | null {
  if (stale) {
    return trans.__('Not connected: trying again.');
  }
  const action = view.actions.find(a => a.id === 'scale');
  return action?.enabled ? null : (action?.why_not ?? trans.__('The size is fixed.'));
}

/** − number +: the number is the requested size; the current size stands left of an arrow while the two differ. */
export function Stepper(props: IStepperProps): React.JSX.Element {
  const language = useLanguage();
  const { trans, format } = language;
  const { view, wish } = props.state;
  const { size } = view;
  const [typed, setTyped] = React.useState('');
  const wanted = wish.learners ?? size.wish;
  const whyNot = whyFixed(language, view, props.stale);
  const differs = size.held > 0 && size.held !== wanted;
  const unit = sizeUnit(view);
  const name = trans.__('%1 of %2', format.unit(unit, 2), view.id);
  const show = (learners: number): number => shownSize(view, learners);

  const scale = (learners: number): void => {
    const bounded = Math.min(size.max, Math.max(size.min, learners));
    if (whyNot === null && bounded !== wanted) {
      props.onScale(bounded);
    }
  };
  const handleKey = (event: React.KeyboardEvent): void => {
    const targets: { [key: string]: number } = {
      ArrowUp: wanted + 1,
      ArrowRight: wanted + 1,
      ArrowDown: wanted - 1,
      ArrowLeft: wanted - 1,
      Home: size.min,
      End: size.max
    };
    if (event.key in targets) {
      setTyped('');
      scale(targets[event.key]);
    } else if (/^\d$/.test(event.key)) {
      setTyped((typed + event.key).slice(-6));
    } else if (event.key === 'Backspace' && typed) {
      setTyped(typed.slice(0, -1));
    } else if (event.key === 'Enter' && typed) {
      scale(Math.round(Number(typed) / Math.max(1, view.gpus_per_learner)));
      setTyped('');
    } else if (event.key === 'Escape' && (typed || differs)) {
      setTyped('');
      if (!typed) {
        scale(size.held);
      }
      event.stopPropagation();
    } else {
      return;
    }
    event.preventDefault();
  };

  const largest = show(Math.max(size.max, size.held));
  return (
    <span
      className="jp-dlaas-stepper"
      role="group"
      aria-label={name}
      data-pending={differs || wish.learners !== null ? '' : undefined}
      data-small={props.small ? '' : undefined}
    >
      <StepButton
        icon="minus"
        name={trans.__('Remove a %1 from %2', format.unit(unit, 1), view.id)}
        whyNot={
          whyNot ?? (wanted <= size.min ? trans.__('This job requested at least %1.', show(wanted)) : null)
        }
        onClick={() => scale(wanted - 1)}
      />
      <span
        role="spinbutton"
        tabIndex={0}
        aria-label={name}
        aria-valuemin={show(size.min)}
        aria-valuemax={show(size.max)}
        aria-valuenow={show(wanted)}
        aria-valuetext={differs ? trans.__('%1 now, %2 requested', show(size.held), show(wanted)) : undefined}
        aria-disabled={whyNot !== null || undefined}
        data-widest={size.min < size.max ? `${largest} → ${largest}` : undefined}
        onKeyDown={handleKey}
        onBlur={() => setTyped('')}
      >
        <span>
          {typed || (
            <>
              {differs && <i>{show(size.held)} →</i>} {show(wanted)}
            </>
          )}
        </span>
      </span>
      <StepButton
        icon="plus"
        name={trans.__('Add a %1 to %2', format.unit(unit, 1), view.id)}
        whyNot={
          whyNot ?? (wanted >= size.max ? trans.__('This job requested at most %1.', show(wanted)) : null)
        }
        onClick={() => scale(wanted + 1)}
      />
    </span>
  );
}

function StepButton(props: {
  icon: 'minus' | 'plus';
  name: string;
  whyNot: string | null;
  onClick: () => void;
}): React.JSX.Element {
  return (
    <button
      type="button"
      aria-label={props.name}
      aria-disabled={props.whyNot !== null || undefined}
      title={props.whyNot ?? undefined}
      onClick={props.onClick}
    >
      <Icon name={props.icon} />
    </button>
  );
}
