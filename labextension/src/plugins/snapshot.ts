import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import type { ICodeCellModel } from '@jupyterlab/cells';
import type { IOutput } from '@jupyterlab/nbformat';
import { INotebookTracker, type NotebookPanel } from '@jupyterlab/notebook';
import { ISettingRegistry } from '@jupyterlab/settingregistry';
import { ITranslator } from '@jupyterlab/translation';
import { JSONExt, type PartialJSONObject } from '@lumino/coreutils';

import type { ILanguage } from '../language';
import type { JobModel } from '../model/job';
import type { Jobs } from '../model/jobs';
import { bundleOf, htmlOf, textOf } from '../model/snapshot';
import { asBundle, isFinal, MIME_TYPE } from '../protocol';
import { IJobs } from '../tokens';
import { languageFor } from './language';
import { readSettings } from './settings';

/** Write a job's last state into every output of the notebook that shows it. */
function refresh(panel: NotebookPanel, model: JobModel, pool: string, language: ILanguage): void {
  const cells = panel.content.model?.cells;
  if (!cells) {
    return;
  }
  for (const cell of cells) {
    if (cell.type !== 'code' || !(cell as ICodeCellModel).trusted) {
      continue;
    }
    const { outputs } = cell as ICodeCellModel;
    for (let i = 0; i < outputs.length; i++) {
      const output = outputs.get(i);
      const old = asBundle(output.data[MIME_TYPE]);
      if (!old || old.job.id !== model.id || Math.abs(old.job.submitted_s - model.view.submitted_s) > 2) {
        continue;
      }
      if (old.job.row === model.view.row && isFinal(old.job.state)) {
        continue;
      }
      const bundle = bundleOf(model.state, old.pool || pool);
      const raw = output.toJSON() as IOutput & PartialJSONObject;
      outputs.set(i, {
        ...raw,
        data: {
          ...output.data,
          [MIME_TYPE]: JSONExt.deepCopy(bundle as unknown as PartialJSONObject),
          'text/html': htmlOf(language, bundle),
          'text/plain': textOf(bundle)
        }
      } as IOutput);
    }
  }
}

export const snapshot: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-dlaas:snapshot',
  description: 'Writes the last state of an ended job into the notebook that shows it.',
  autoStart: true,
  requires: [IJobs],
  optional: [INotebookTracker, ISettingRegistry, ITranslator],
  activate: async (
    _app: JupyterFrontEnd,
    jobs: IJobs,
    tracker: INotebookTracker | null,
    registry: ISettingRegistry | null,
    translator: ITranslator | null
  ): Promise<void> => {
    if (!tracker) {
      return;
    }
    const language = languageFor(translator);
    let enabled = true;
    await readSettings(registry, settings => {
      enabled = settings.refreshOutputs;
    });
    jobs.settled.connect((_: Jobs, model: JobModel) => {
      if (enabled) {
        tracker.forEach(panel => refresh(panel, model, jobs.poolName, language));
      }
    });
  }
};
