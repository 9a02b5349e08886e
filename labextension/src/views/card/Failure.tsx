import * as React from 'react';

import { capitalised } from '../../format';
import { type ILanguage, useLanguage } from '../../language';
import type { IFailure, IJobView, IWhere } from '../../protocol';
import { Button } from '../controls/Button';
import { Fold } from '../controls/Fold';
import { Sentence } from '../controls/Sentence';
import type { ICardHandlers } from '../handlers';
import { whyDisabled } from './Actions';

/** Say which learners raised the exception, and at which step; empty if neither is known. */
function origin({ trans, format }: ILanguage, failure: IFailure): string {
  const { raised_by: learners } = failure;
  const step = failure.step === null ? '' : format.count(failure.step);
  if (learners.length > 1) {
    return step
      ? trans.__('Raised by %1 learners at step %2; shown once.', learners.length, step)
      : trans.__('Raised by %1 learners; shown once.', learners.length);
  }
  if (learners.length === 1) {
    return step
      ? trans.__('Raised by learner %1 at step %2.', learners[0], step)
      : trans.__('Raised by learner %1.', learners[0]);
  }
  return step ? trans.__('At step %1.', step) : '';
}

function Where({ where }: { where: IWhere }): React.JSX.Element {
  const { trans } = useLanguage();
  const label = capitalised(where.label);
  const text = where.function
    ? trans.__('%1, line %2, in `%3`', label, where.line, where.function)
    : trans.__('%1, line %2', label, where.line);
  return (
    <>
      <Sentence text={text} />
      {where.source.length > 0 && (
        <pre
          className="jp-dlaas-trace"
          tabIndex={0}
          aria-label={trans.__('Your code around line %1', where.line)}
        >
          {where.source.map((code, i) => {
            const line = where.first_line + i;
            return (
              <span key={line} data-tone={line === where.line ? 'bad' : undefined}>
                <i>{line}</i>
                {code}
              </span>
            );
          })}
        </pre>
      )}
    </>
  );
}

/** A failure: what happened, where, and what to do; always in this order. */
export function Failure({ failure }: { failure: IFailure }): React.JSX.Element {
  const language = useLanguage();
  const { trans } = language;
  const raised = origin(language, failure);
  return (
    <dl className="jp-dlaas-three">
      <dt>{trans.__('What')}</dt>
      <dd>
        <code>{failure.what}</code>
        {raised && (
          <>
            <br />
            <span className="jp-dlaas-dim jp-dlaas-small">{raised}</span>
          </>
        )}
      </dd>
      {failure.where && (
        <>
          <dt>{trans.__('Where')}</dt>
          <dd>
            <Where where={failure.where} />
          </dd>
        </>
      )}
      <dt>{trans.__('What to do')}</dt>
      <dd>
        <Sentence text={failure.advice} />
      </dd>
    </dl>
  );
}

/** The buttons below a failure. */
export function FailureActions(props: {
  view: IJobView;
  failure: IFailure;
  handlers: ICardHandlers;
  stale: boolean;
}): React.JSX.Element {
  const { trans } = useLanguage();
  const { view, failure, handlers, stale } = props;
  const retry = view.actions.find(a => a.id === 'retry');
  const cell = failure.where?.label.startsWith('cell') ? failure.where.label : null;
  return (
    <div className="jp-dlaas-foot">
      {(cell || view.origin.cell_id) && handlers.goToCell && (
        <Button
          icon="goto"
          label={cell ? trans.__('Go to %1', cell) : trans.__('Go to the cell')}
          primary
          onClick={handlers.goToCell}
        />
      )}
      {retry && (
        <Button
          icon="retry"
          label={retry.label}
          whyNot={whyDisabled(trans, retry, stale)}
          onClick={() => handlers.act('retry')}
        />
      )}
      <span className="jp-dlaas-grow" />
      <Button
        icon="copy"
        label={trans.__('Copy report')}
        whyNot={stale ? trans.__('Not connected: trying again.') : null}
        onClick={handlers.copyReport}
      />
    </div>
  );
}

/** The full traceback, folded. */
export function Traceback({ failure }: { failure: IFailure }): React.JSX.Element | null {
  const { trans, format } = useLanguage();
  if (!failure.traceback) {
    return null;
  }
  const lines = failure.traceback.trimEnd().split('\n');
  const title = trans.__('Full traceback');
  return (
    <Fold title={title} gist={trans._n('%2 line', '%2 lines', lines.length, format.count(lines.length))}>
      {() => (
        <pre className="jp-dlaas-trace" tabIndex={0} aria-label={title}>
          {lines.map((line, i) => (
            <span key={i}>{line}</span>
          ))}
        </pre>
      )}
    </Fold>
  );
}
