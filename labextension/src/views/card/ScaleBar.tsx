import * as React from 'react';

import { capitalised } from '../../format';
import { type ILanguage, useLanguage } from '../../language';
import type { IJobState } from '../../model/job';
import { shownSize, sizeUnit } from '../../model/size';
import { Button } from '../controls/Button';
import { Icon } from '../controls/Icon';
import { Stepper } from '../controls/Stepper';
import { Switch } from '../controls/Switch';
import type { ICardHandlers } from '../handlers';
import { whyDisabled } from './Actions';

interface IScaleText {
  /** The main point, in bold type. */
  lead: string;
  text: string;
  isWarning: boolean;
}

/** Return whether the size follows the speed, as the user sees it: a press on − or + switches Auto off at once. */
function isAuto({ view, wish }: IJobState): boolean {
  return wish.learners === null && (wish.elastic ?? view.elastic) === 'auto';
}

/** Explain a refused request: what stayed as it was, and the server's reason. */
function refusalText({ trans }: ILanguage, { view, wish }: IJobState): IScaleText {
  // the server counts learners, so it begins with the same words or with another number
  const text = wish.refusal.replace(/^Stayed at \d+\. /, '');
  if (wish.refused === 'auto') {
    const lead = view.elastic === 'auto' ? trans.__('Auto stays on.') : trans.__('Auto stays off.');
    return { lead, text, isWarning: true };
  }
  return { lead: trans.__('Stayed at %1.', shownSize(view, view.size.wish)), text, isWarning: true };
}

/** Say what the reader should know about the size now. */
function scaleText(language: ILanguage, state: IJobState, stale: boolean): IScaleText {
  const { trans, format } = language;
  const { view, wish } = state;
  const { size } = view;
  const wanted = wish.learners ?? size.wish;
  const show = (learners: number): number => shownSize(view, learners);
  const plain = (text: string, lead = ''): IScaleText => ({ lead, text, isWarning: false });
  const speedup = view.speedup ? `${view.speedup}.` : '';
  if (stale) {
    return plain(trans.__('The size can be changed once the page is connected.'));
  }
  if (wish.refusal) {
    return refusalText(language, state);
  }
  if (wish.unconfirmed) {
    return plain(trans.__('Sent, not yet confirmed.'));
  }
  if (size.held > 0 && wanted !== size.held) {
    const lead = trans.__('Requested %1, has %2.', show(wanted), show(size.held));
    return plain(wish.learners === null ? view.reason : '', lead);
  }
  const scale = view.actions.find(a => a.id === 'scale');
  if (scale && !scale.enabled && scale.why_not) {
    return plain(capitalised(scale.why_not));
  }
  if (isAuto(state)) {
    return plain(speedup, size.held > 0 ? trans.__('Auto chose %1.', show(size.held)) : '');
  }
  if (wanted >= size.max && size.max > size.min) {
    return plain(trans.__('This job requested at most %1.', show(size.max)));
  }
  if (view.state === 'HALTED') {
    return plain(trans.__('Resumes with %1.', format.quantity(show(wanted), sizeUnit(view))));
  }
  return plain(speedup);
}

/** The scale control, with the pool's answer to the last request. */
export function ScaleBar(props: {
  state: IJobState;
  handlers: ICardHandlers;
  stale: boolean;
}): React.JSX.Element | null {
  const language = useLanguage();
  const { trans, format } = language;
  const { state, stale } = props;
  const { view, wish } = state;
  const { size } = view;
  const scale = view.actions.find(a => a.id === 'scale');
  if (!scale) {
    return null;
  }
  const wanted = wish.learners ?? size.wish;
  const { lead, text, isWarning } = scaleText(language, state, stale);
  const canKeep = size.held > 0 && wanted !== size.held && size.held >= size.min && !stale;
  const held = shownSize(view, size.held);
  return (
    <div className="jp-dlaas-scalebar">
      <span className="jp-dlaas-scale">
        <span className="jp-dlaas-scale-label" aria-hidden="true">
          {format.unit(sizeUnit(view), 2)}
        </span>
        <Stepper state={state} onScale={props.handlers.scale} stale={stale} />
        <span className="jp-dlaas-nowrap">
          {size.min === size.max
            ? trans.__('fixed')
            : `${shownSize(view, size.min)}–${shownSize(view, size.max)}`}
        </span>
        {size.min < size.max && view.elastic !== 'off' && (
          <Switch
            label={trans.__('Auto')}
            title={trans.__(
              'Measure several sizes while the job trains, keep the best one, and release devices when other jobs wait'
            )}
            on={isAuto(state)}
            whyNot={whyDisabled(trans, scale, stale)}
            onChange={on => props.handlers.setElastic(on ? 'auto' : 'manual')}
          />
        )}
      </span>
      <span className="jp-dlaas-grow jp-dlaas-small" data-tone={isWarning ? 'warn' : undefined}>
        {isWarning && <Icon name="warn" marked />} {lead && <b>{lead}</b>} {text}
      </span>
      {canKeep && (
        <Button
          icon="back"
          label={wanted > size.held ? trans.__('Stay at %1', held) : trans.__('Back to %1', held)}
          onClick={() => props.handlers.scale(size.held)}
        />
      )}
    </div>
  );
}
