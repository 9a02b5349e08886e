import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { Notification } from '@jupyterlab/apputils';
import { ISettingRegistry } from '@jupyterlab/settingregistry';
import { ITranslator } from '@jupyterlab/translation';

import type { IJobView } from '../protocol';
import { IJobs } from '../tokens';
import { NOTIFIED_MS } from './errors';
import { languageFor } from './language';
import { ICardServices } from './services';
import { readSettings } from './settings';

/** Return whether a card of the job is on screen: then the user needs no notification. */
function isOnScreen(id: string): boolean {
  if (document.hidden) {
    return false;
  }
  return [...document.querySelectorAll(`.jp-dlaas-card[data-job="${CSS.escape(id)}"]`)].some(card => {
    const { top, bottom, width } = card.getBoundingClientRect();
    return width > 0 && bottom > 0 && top < window.innerHeight;
  });
}

export const notifications: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-dlaas:notifications',
  description: 'Notifies the user when a training job completes, fails, is preempted or loses a learner.',
  autoStart: true,
  requires: [IJobs],
  optional: [ICardServices, ISettingRegistry, ITranslator],
  activate: async (
    _app: JupyterFrontEnd,
    jobs: IJobs,
    services: ICardServices | null,
    registry: ISettingRegistry | null,
    translator: ITranslator | null
  ): Promise<void> => {
    const { trans, format } = languageFor(translator);
    let enabled = true;
    await readSettings(registry, settings => {
      enabled = settings.notifications;
    });
    const notifyFailure = (view: IJobView): void => {
      const { failure } = view;
      const actions: Notification.IAction[] = [
        {
          label: trans.__('Copy report'),
          callback: () => void services?.copyReport(view.id)
        }
      ];
      if (services?.goToCell) {
        actions.push({
          label: trans.__('Go to the cell'),
          callback: () => void services.goToCell?.(view)
        });
      }
      const cause = failure?.cause ?? trans.__('unknown cause');
      const what = failure?.what ?? '';
      const text = failure?.where
        ? trans.__(
            '%1 failed (%2). %3, line %4: %5',
            view.id,
            cause,
            failure.where.label,
            failure.where.line,
            what
          )
        : trans.__('%1 failed (%2). %3', view.id, cause, what);
      Notification.error(text, { autoClose: false, actions });
    };
    const notifyCompletion = (view: IJobView): void => {
      const duration = view.ended_s === null ? '' : format.duration(view.ended_s - view.submitted_s);
      const detail = [duration, view.status_line].filter(Boolean).join(', ');
      Notification.success(trans.__('%1 completed. %2', view.id, detail), { autoClose: NOTIFIED_MS });
    };
    jobs.interrupted.connect((_, view) => {
      const last = view.interruptions?.at(-1);
      if (enabled && last && !isOnScreen(view.id)) {
        Notification.warning(trans.__('%1: %2', view.id, last.text), { autoClose: NOTIFIED_MS });
      }
    });
    jobs.ended.connect((_, view) => {
      if (!enabled || isOnScreen(view.id)) {
        return;
      }
      if (view.state === 'FAILED') {
        notifyFailure(view);
      } else if (view.state === 'COMPLETED') {
        notifyCompletion(view);
      }
    });
  }
};
