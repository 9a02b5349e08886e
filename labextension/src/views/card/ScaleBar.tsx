import * as React from 'react';

import type { IJobState } from '../../model/job';
import { shownSize, sizeUnit } from '../../model/size';
import { Button, NOT_CONNECTED } from '../controls/Button';
import { Icon } from '../controls/Icon';
import { Stepper } from '../controls/Stepper';
import { Switch } from '../controls/Switch';
import * as format from '../format';
import type { ICardHandlers } from '../handlers';

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
