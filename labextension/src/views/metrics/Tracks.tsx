import * as React from 'react';

import type { IJobState } from '../../model/job';
import { chart } from './chart';
import { Flags, left } from './Flags';
import { Track } from './Track';

/** Loss, accuracy and whatever else is logged, throughput and size: one time axis, resizes as lines through all. */
export function Tracks({ state }: { state: IJobState }): React.JSX.Element | null {
  const sync = React.useId();
  const shown = React.useMemo(() => chart(state), [state]);
  if (!shown) {
    return null;
  }
  return (
    <div className="jp-dlaas-tracks" role="group" aria-label="Metrics">
      {shown.flags.length > 0 && <Flags flags={shown.flags} />}
      {shown.tracks.map(track => (
        <Track key={track.key} track={track} chart={shown} sync={sync} />
      ))}
      <div className="jp-dlaas-track" data-kind="axis" aria-hidden="true">
        <span />
        <div>
          {shown.ticks.map(tick => (
            <span key={tick.x} style={left(tick.x)}>
              {tick.text}
            </span>
          ))}
        </div>
        <span />
      </div>
    </div>
  );
}
