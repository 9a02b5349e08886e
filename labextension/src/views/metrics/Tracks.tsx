import * as React from 'react';

import { useLanguage } from '../../language';
import type { IJobState } from '../../model/job';
import { chart } from './chart';
import { Flags } from './Flags';
import { Track } from './Track';

/** The logged metrics, throughput and size over one time axis; changes of size are lines through all. */
export function Tracks({ state }: { state: IJobState }): React.JSX.Element | null {
  const language = useLanguage();
  const sync = React.useId();
  const shown = React.useMemo(() => chart(language, state), [language, state]);
  if (!shown) {
    return null;
  }
  return (
    <div className="jp-dlaas-tracks" role="group" aria-label={language.trans.__('Metrics')}>
      {shown.flags.length > 0 && <Flags flags={shown.flags} />}
      {shown.tracks.map(track => (
        <Track key={track.key} track={track} chart={shown} sync={sync} />
      ))}
      <div className="jp-dlaas-track" data-kind="axis" aria-hidden="true">
        <span />
        <div>
          {shown.ticks.map(tick => (
            <span key={tick.x} style={{ left: `${(100 * tick.x).toFixed(2)}%` }}>
              {tick.text}
            </span>
          ))}
        </div>
        <span />
      </div>
    </div>
  );
}
