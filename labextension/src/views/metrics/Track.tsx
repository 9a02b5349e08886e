import * as React from 'react';

import { useLanguage } from '../../language';
import type { IChart } from './chart';
import { Plot } from './Plot';
import type { ITrack } from './tracks';

/** One quantity: its name, last value, plot, and value range. */
export function Track(props: { track: ITrack; chart: IChart; sync: string }): React.JSX.Element {
  const { trans } = useLanguage();
  const { track } = props;
  const value = React.useRef<HTMLElement>(null);
  const [smooth, setSmooth] = React.useState(true);
  return (
    <div className="jp-dlaas-track" data-kind={track.kind}>
      <div className="jp-dlaas-track-label">
        <span>{track.label}</span>
        <b>
          <span ref={value} data-value={track.value}>
            {track.value}
          </span>
          {track.unit && <small> {track.unit}</small>}
        </b>
        {track.origin && <small className="jp-dlaas-dim">{track.origin}</small>}
        {track.smoothed && (
          <button
            type="button"
            className="jp-dlaas-smooth"
            aria-pressed={smooth}
            title={
              smooth
                ? trans.__('Hide the running mean, the dashed line')
                : trans.__('Show the running mean, the dashed line')
            }
            onClick={() => setSmooth(!smooth)}
          >
            {trans.__('Running mean')}
          </button>
        )}
      </div>
      <Plot
        {...props}
        smooth={smooth}
        onPoint={point => {
          // under the pointer the label shows that point; moving a mouse need not go through React
          if (value.current) {
            value.current.textContent =
              point === null ? (value.current.dataset.value ?? '') : track.show(point);
          }
        }}
      />
      <div className="jp-dlaas-range" aria-hidden="true">
        <span>{track.range[0]}</span>
        <span>{track.range[1]}</span>
      </div>
    </div>
  );
}
