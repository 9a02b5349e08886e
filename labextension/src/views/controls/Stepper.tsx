import * as React from 'react';

import type { IJobState } from '../../model/job';
import { shownSize, sizeUnit } from '../../model/size';
import { units } from '../format';
import { NOT_CONNECTED } from './Button';
import { Icon, type IconName } from './Icon';

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
