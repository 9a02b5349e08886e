import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { IRunningSessionManagers, type IRunningSessions } from '@jupyterlab/running';
import { ITranslator } from '@jupyterlab/translation';
import { Signal } from '@lumino/signaling';

import type { JobModel } from '../model/job';
import { IJobs } from '../tokens';
import { trainingIcon } from './icon';
import { languageFor } from './language';
import { CommandIDs } from './names';

export const running: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-dlaas:running',
  description: 'Lists training jobs among the running sessions.',
  autoStart: true,
  requires: [IJobs],
  optional: [IRunningSessionManagers, ITranslator],
  activate: (
    app: JupyterFrontEnd,
    jobs: IJobs,
    managers: IRunningSessionManagers | null,
    translator: ITranslator | null
  ): void => {
    if (!managers) {
      return;
    }
    const { trans } = languageFor(translator);
    const owner = {};
    const changed = new Signal<object, void>(owner);
    let shown = '';
    jobs.changed.connect(() => {
      const current = jobs.unfinished.map(m => `${m.id} ${m.view.state_label}`).join();
      if (current !== shown) {
        shown = current;
        changed.emit();
      }
    });
    const cancel = (model: JobModel): void => void model.act('cancel');
    managers.add({
      name: trans.__('Training Jobs'),
      supportsMultipleViews: false,
      running: (): IRunningSessions.IRunningItem[] =>
        jobs.unfinished.map(model => ({
          label: () => model.id,
          labelTitle: () => model.view.reason || model.view.state_label,
          detail: () => model.view.state_label,
          icon: () => trainingIcon,
          open: () => void app.commands.execute(CommandIDs.openJob, { id: model.id }),
          shutdown: () => cancel(model)
        })),
      shutdownAll: () => jobs.unfinished.forEach(cancel),
      refreshRunning: () => undefined,
      runningChanged: changed,
      shutdownLabel: trans.__('Cancel the Job'),
      shutdownAllLabel: trans.__('Cancel All Jobs'),
      shutdownAllConfirmationText: trans.__('Cancel all your training jobs?')
    });
  }
};
