import * as React from 'react';

import type { IFailure, IJobView, IWhere } from '../../protocol';
import { Button, NOT_CONNECTED } from '../controls/Button';
import { Fold } from '../controls/Fold';
import { Sentence } from '../controls/Sentence';
import * as format from '../format';
import type { ICardHandlers } from '../handlers';

function raised(failure: IFailure): string {
  const who =
    failure.raised_by.length > 1
      ? `Raised by ${failure.raised_by.length} learners`
      : failure.raised_by.length === 1
        ? `Raised by learner ${failure.raised_by[0]}`
        : '';
  const when = failure.step === null ? '' : `at step ${format.count(failure.step)}`;
  const once = failure.raised_by.length > 1 ? '; shown once' : '';
  const text = [who, when].filter(Boolean).join(' ');
  return text ? `${text.charAt(0).toUpperCase()}${text.slice(1)}${once}.` : '';
}

function Where({ where }: { where: IWhere }): React.JSX.Element {
  const label = where.label.charAt(0).toUpperCase() + where.label.slice(1);
  return (
    <>
      {label}, line {where.line}
      {where.function && (
        <>
          , in <code>{where.function}</code>
        </>
      )}
      {where.source.length > 0 && (
        <pre className="jp-dlaas-trace" tabIndex={0} aria-label={`Your code around line ${where.line}`}>
          {where.source.map((text, i) => {
            const line = where.first_line + i;
            return (
              <span key={line} data-tone={line === where.line ? 'bad' : undefined}>
                <i>{line}</i>
                {text}
              </span>
            );
          })}
        </pre>
      )}
    </>
  );
}

/** What, where, what to do: always in this order. */
export function Failure({ failure }: { failure: IFailure }): React.JSX.Element {
  const once = raised(failure);
  return (
    <dl className="jp-dlaas-three">
      <dt>What</dt>
      <dd>
        <code>{failure.what}</code>
        {once && (
          <>
            <br />
            <span className="jp-dlaas-dim jp-dlaas-small">{once}</span>
          </>
        )}
      </dd>
      {failure.where && (
        <>
          <dt>Where</dt>
          <dd>
            <Where where={failure.where} />
          </dd>
        </>
      )}
      <dt>What to do</dt>
      <dd>
        <Sentence text={failure.advice} />
      </dd>
    </dl>
  );
}

export function FailureFoot(props: {
  view: IJobView;
  failure: IFailure;
  handlers: ICardHandlers;
  stale: boolean;
}): React.JSX.Element {
  const { view, failure, handlers } = props;
  const retry = view.actions.find(a => a.id === 'retry');
  const goToCell =
    failure.where?.label.startsWith('cell') || view.origin.cell_id ? handlers.goToCell : undefined;
  const cell = failure.where?.label.startsWith('cell') ? failure.where.label : 'the cell';
  return (
    <div className="jp-dlaas-foot">
      {goToCell && <Button icon="goto" label={`Go to ${cell}`} primary onClick={goToCell} />}
      {retry && (
        <Button
          icon="retry"
          label={retry.label}
          whyNot={props.stale ? NOT_CONNECTED : retry.enabled ? null : (retry.why_not ?? '')}
          onClick={() => handlers.act('retry')}
        />
      )}
      <span className="jp-dlaas-grow" />
      <Button
        icon="copy"
        label="Copy report"
        whyNot={props.stale ? NOT_CONNECTED : null}
        onClick={handlers.copyReport}
      />
    </div>
  );
}

export function Traceback({ failure }: { failure: IFailure }): React.JSX.Element | null {
  if (!failure.traceback) {
    return null;
  }
  const text = failure.traceback;
  return (
    <Fold title="Full traceback" gist={`${format.count(text.trimEnd().split('\n').length)} lines`}>
      {() => (
        <pre className="jp-dlaas-trace" tabIndex={0} aria-label="Full traceback">
          {text
            .trimEnd()
            .split('\n')
            .map((line, i) => (
              <span key={i}>{line}</span>
            ))}
        </pre>
      )}
    </Fold>
  );
}
