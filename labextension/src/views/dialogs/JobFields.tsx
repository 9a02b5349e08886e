import * as React from 'react';

import { type ILanguage, useLanguage } from '../../language';
import type { ITrainForm } from '../../model/trainForm';
import type { IPoolView } from '../../protocol';
import { Segments } from '../controls/Segments';

/** Explain what a spot job is in this pool. */
function spotText({ trans, format }: ILanguage, pool: IPoolView | null): string {
  if (!pool) {
    return trans.__(
      'Uses only idle devices. When others need them, it writes a checkpoint and continues later.'
    );
  }
  const notice = format.duration(pool.spot_notice_s);
  return pool.order === 'fair'
    ? trans.__(
        "Uses only idle devices, and counts %1 in its queue's share. When others need them, it writes a checkpoint within %2 and continues later.",
        format.percent(pool.spot_price),
        notice
      )
    : trans.__(
        'Uses only idle devices. When others need them, it writes a checkpoint within %1 and continues later.',
        notice
      );
}

/** Parse a whole number that is at least `min`. */
function wholeNumber(text: string, min: number): number {
  return Math.max(min, Math.floor(Number(text)) || min);
}

/** Name, size, priority and kind of the job. */
export function JobFields(props: {
  pool: IPoolView | null;
  form: ITrainForm;
  onChange: (form: ITrainForm) => void;
}): React.JSX.Element {
  const language = useLanguage();
  const { trans, format } = language;
  const { pool, form, onChange } = props;
  const id = React.useId();
  const units = format.unit(pool?.unit ?? 'GPU', 2);
  const changeMin = (text: string): void => {
    const learnersMin = wholeNumber(text, 1);
    onChange({ ...form, learnersMin, learnersMax: Math.max(learnersMin, form.learnersMax) });
  };
  return (
    <fieldset>
      <legend>{trans.__('Job')}</legend>
      <div className="jp-dlaas-fields">
        <label htmlFor={`${id}name`}>{trans.__('Name')}</label>
        <div>
          <input
            id={`${id}name`}
            className="jp-dlaas-input"
            value={form.name}
            onChange={event => onChange({ ...form, name: event.target.value })}
          />
        </div>
        <span className="jp-dlaas-label">{units}</span>
        <div>
          <input
            className="jp-dlaas-input"
            type="number"
            min={1}
            aria-label={trans.__('Minimum number of %1', units)}
            value={form.learnersMin}
            onChange={event => changeMin(event.target.value)}
          />
          {trans._p('from … to …', 'to')}
          <input
            className="jp-dlaas-input"
            type="number"
            min={form.learnersMin}
            aria-label={trans.__('Maximum number of %1', units)}
            value={form.learnersMax}
            onChange={event =>
              onChange({ ...form, learnersMax: wholeNumber(event.target.value, form.learnersMin) })
            }
          />
        </div>
        <span className="jp-dlaas-label">{trans.__('Priority')}</span>
        <div>
          <Segments
            label={trans.__('Priority')}
            values={[
              { id: '-100', text: trans.__('Low') },
              { id: '0', text: trans.__('Normal') },
              { id: '100', text: trans.__('High') }
            ]}
            value={String(form.priority)}
            onChange={value => onChange({ ...form, priority: Number(value) })}
          />
        </div>
        <span className="jp-dlaas-label">{trans.__('Spot')}</span>
        <div>
          <input
            id={`${id}spot`}
            type="checkbox"
            aria-label={trans.__('Spot: cheaper, may be reclaimed')}
            aria-describedby={`${id}about-spot`}
            checked={form.spot}
            onChange={event => onChange({ ...form, spot: event.target.checked })}
          />
          <label htmlFor={`${id}spot`}>{trans.__('cheaper, may be reclaimed')}</label>
          <span id={`${id}about-spot`} className="jp-dlaas-small" hidden={!form.spot}>
            {spotText(language, pool)}
          </span>
        </div>
      </div>
    </fieldset>
  );
}
