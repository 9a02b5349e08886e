import * as React from 'react';

import type { IJobState } from '../../model/job';
import { Fold } from '../controls/Fold';
import * as format from '../format';
import { LogBody } from './LogView';

function gist(state: IJobState, nowS: number): string {
  const { log } = state;
  const lines = `${format.count(log.count)} ${log.count === 1 ? 'line' : 'lines'}`;
  const isCopy = log.rows.length > 0 && log.rows[0].member < 0;
  const parts = [isCopy ? `last ${lines}` : lines];
  if (log.warnings) {
    parts.push(`${format.count(log.warnings)} ${log.warnings === 1 ? 'warning' : 'warnings'}`);
  }
  if (log.errors) {
    parts.push(`${format.count(log.errors)} ${log.errors === 1 ? 'error' : 'errors'}`);
  }
  if (log.lastS && state.view.state === 'PROCESSING') {
    parts.push(`last line ${format.ago(nowS - log.lastS)}`);
  }
  return parts.join(' · ');
}

export function LogFold(props: { state: IJobState; nowS: number; open?: boolean }): React.JSX.Element {
  return (
    <Fold title="Log" gist={gist(props.state, props.nowS)} open={props.open}>
      {() => <LogBody state={props.state} />}
    </Fold>
  );
}
