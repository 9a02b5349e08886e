import * as React from 'react';

import { type ILanguage, useLanguage } from '../../language';
import type { IJobState } from '../../model/job';
import { Fold } from '../controls/Fold';
import { LogView } from './LogView';

/** Summarise a log: `1,204 lines · 2 warnings · last line 3 s ago`. */
function logGist({ trans, format }: ILanguage, state: IJobState, nowS: number): string {
  const { log } = state;
  const isSaved = log.rows.length > 0 && log.rows[0].member < 0;
  const lines = format.count(log.count);
  const parts = [
    isSaved
      ? trans._n('last %2 line', 'last %2 lines', log.count, lines)
      : trans._n('%2 line', '%2 lines', log.count, lines)
  ];
  if (log.warnings) {
    parts.push(trans._n('%2 warning', '%2 warnings', log.warnings, format.count(log.warnings)));
  }
  if (log.errors) {
    parts.push(trans._n('%2 error', '%2 errors', log.errors, format.count(log.errors)));
  }
  if (log.lastS && state.view.state === 'PROCESSING') {
    parts.push(trans.__('last line %1', format.ago(nowS - log.lastS)));
  }
  return parts.join(' · ');
}

/** The log of a job, folded. */
export function LogFold(props: { state: IJobState; nowS: number }): React.JSX.Element {
  const language = useLanguage();
  return (
    <Fold title={language.trans.__('Log')} gist={logGist(language, props.state, props.nowS)}>
      {() => <LogView state={props.state} />}
    </Fold>
  );
}
