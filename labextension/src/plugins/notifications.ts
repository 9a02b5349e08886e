import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { Notification } from '@jupyterlab/apputils';
import { ISettingRegistry } from '@jupyterlab/settingregistry';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';

import type { IJobView } from '../protocol';
import { IJobs } from '../tokens';
import * as format from '../views/format';
import { ICardServices } from './services';
import { readSettings } from './settings';

/** True when a card of the job is on screen: what one can see needs no notification. */
function onScreen(id: string): boolean {
  if (document.hidden) {
    return false;
  }
  return [...document.querySelectorAll(`.jp-dlaas-card[aria-label="Job ${CSS.escape(id)}"]`)].some(card => {
    const { top, bottom, width } = card.getBoundingClientRect();
    return width > 0 && bottom > 0 && top < window.innerHeight;
  });
}

export const notifications: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-dlaas:notifications',
  description: 'Tells when a training job has completed, failed, been preempted or lost a learner.',
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
    const trans = (translator ?? nullTranslator).load('jupyter_dlaas');
    let wanted = true;
    await readSettings(registry, settings => {
      wanted = settings.notifications;
    });
    const failed = (view: IJobView): void => {
      const { failure } = view;
      const where = failure?.where ? `${failure.where.label}, line ${failure.where.line}: ` : '';
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
      Notification.error(
        trans.__('%1 failed: %2. %3', view.id, failure?.cause ?? 'unknown', where + (failure?.what ?? '')),
        { autoClose: false, actions }
      );
    };
    jobs.interrupted.connect((_, view) => {
      const last = view.interruptions?.at(-1);
      if (wanted && last && !onScreen(view.id)) {
        Notification.warning(`${view.id}: ${last.text}`, { autoClose: 8000 });
      }
    });
    jobs.ended.connect((_, view) => {
      if (!wanted || onScreen(view.id)) {
        return;
      }
      if (view.state === 'FAILED') {
        failed(view);
      } else if (view.state === 'COMPLETED') {
        const took = view.ended_s === null ? '' : format.duration(view.ended_s - view.submitted_s);
        Notification.success(
          trans.__('%1 completed. %2', view.id, [took, view.status_line].filter(Boolean).join(', ')),
          {
            autoClose: 8000
          }
        );
      }
    });
  }
};
