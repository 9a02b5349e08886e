import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import {
  Dialog,
  ICommandPalette,
  Notification,
  ReactWidget,
  showDialog,
  ToolbarButton
} from '@jupyterlab/apputils';
import type { DocumentRegistry } from '@jupyterlab/docregistry';
import { type INotebookModel, INotebookTracker, type NotebookPanel } from '@jupyterlab/notebook';
import { ITranslator } from '@jupyterlab/translation';
import { DisposableDelegate, type IDisposable } from '@lumino/disposable';
import * as React from 'react';

import type { Client } from '../api/client';
import { type ILanguage, LanguageContext } from '../language';
import { cellsToCheck, cellsToSend, initialForm, type ITrainForm } from '../model/trainForm';
import type { ICellSource, INotebookChecked, IPoolView } from '../protocol';
import { IJobs } from '../tokens';
import { TrainForm } from '../views/dialogs/TrainForm';
import { NOTIFIED_MS, showError } from './errors';
import { trainingIcon } from './icon';
import { languageFor } from './language';
import { CommandIDs } from './names';

/** Return the code cells of a notebook, with their tags. */
function codeCells(panel: NotebookPanel): ICellSource[] {
  const cells = panel.content.model?.cells;
  if (!cells) {
    return [];
  }
  return [...cells]
    .filter(cell => cell.type === 'code')
    .map(cell => {
      const tags = cell.getMetadata('tags') as unknown;
      return {
        source: cell.sharedModel.getSource(),
        tags: Array.isArray(tags) ? tags.filter((t): t is string => typeof t === 'string') : [],
        id: cell.id
      };
    });
}

const CHECK_AFTER_MS = 300;

class FormBody extends ReactWidget implements Dialog.IBodyWidget<ITrainForm> {
  constructor(
    private readonly client: Client,
    private readonly path: string,
    private readonly cells: readonly ICellSource[],
    private readonly pool: IPoolView | null,
    private form: ITrainForm,
    private readonly language: ILanguage
  ) {
    super();
    this.addClass('jp-dlaas-dialog');
    void this.check();
  }

  override dispose(): void {
    window.clearTimeout(this.timer);
    super.dispose();
  }

  getValue(): ITrainForm {
    return this.form;
  }

  protected override render(): React.JSX.Element {
    return (
      <LanguageContext.Provider value={this.language}>
        <TrainForm
          cells={this.cells}
          pool={this.pool}
          form={this.form}
          checked={this.checked}
          onChange={form => {
            if (form.sent !== this.form.sent) {
              window.clearTimeout(this.timer);
              this.timer = window.setTimeout(() => void this.check(), CHECK_AFTER_MS);
            }
            this.form = form;
            this.update();
          }}
        />
      </LanguageContext.Provider>
    );
  }

  /** Check the cells to send. Without an answer the form works as before. */
  private async check(): Promise<void> {
    const { sent } = this.form;
    const cells = cellsToCheck(this.cells, this.form);
    const checked = await this.client.checkNotebook(this.path, cells).catch(() => null);
    if (!this.isDisposed && sent === this.form.sent) {
      this.checked = checked;
      this.update();
    }
  }

  private checked: INotebookChecked | null = null;
  private timer: number | undefined;
}

class TrainButton implements DocumentRegistry.IWidgetExtension<NotebookPanel, INotebookModel> {
  constructor(
    private readonly app: JupyterFrontEnd,
    private readonly label: string
  ) {}

  createNew(panel: NotebookPanel): IDisposable {
    const button = new ToolbarButton({
      icon: trainingIcon,
      tooltip: this.label,
      onClick: () => void this.app.commands.execute(CommandIDs.trainNotebook)
    });
    panel.toolbar.insertAfter('cellType', 'dlaas-train', button);
    return new DisposableDelegate(() => button.dispose());
  }
}

export const train: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-dlaas:train',
  description: 'Adds "Train this notebook", which submits a notebook as a job without running its kernel.',
  autoStart: true,
  requires: [IJobs],
  optional: [INotebookTracker, ICommandPalette, ITranslator],
  activate: (
    app: JupyterFrontEnd,
    jobs: IJobs,
    tracker: INotebookTracker | null,
    palette: ICommandPalette | null,
    translator: ITranslator | null
  ): void => {
    if (!tracker) {
      return;
    }
    const language = languageFor(translator);
    const { trans } = language;

    const submit = async (panel: NotebookPanel): Promise<void> => {
      const cells = codeCells(panel);
      const path = panel.context.path;
      const pool = jobs.pool ?? (await jobs.client.pool().catch(() => null));
      const body = new FormBody(jobs.client, path, cells, pool, initialForm(cells, path, pool), language);
      const answer = await showDialog({
        title: trans.__('Train this notebook'),
        body,
        buttons: [Dialog.cancelButton(), Dialog.okButton({ label: trans.__('Train') })]
      });
      if (!answer.button.accept || !answer.value) {
        return;
      }
      const form = answer.value;
      try {
        const view = await jobs.client.trainNotebook({
          path,
          cells: cellsToSend(cells, form),
          kernelName:
            panel.sessionContext.kernelPreference.name ??
            panel.sessionContext.session?.kernel?.name ??
            'python3',
          name: form.name,
          learnersMin: form.learnersMin,
          learnersMax: form.learnersMax,
          priority: form.priority,
          spot: form.spot
        });
        jobs.add(view);
        await app.commands.execute(CommandIDs.openPanel);
        Notification.info(trans.__('%1 was submitted.', view.id), { autoClose: NOTIFIED_MS });
      } catch (error) {
        showError(error, false);
      }
    };

    app.commands.addCommand(CommandIDs.trainNotebook, {
      label: trans.__('Train This Notebook…'),
      icon: trainingIcon,
      describedBy: { args: { type: 'object', properties: {} } },
      isEnabled: () => tracker.currentWidget !== null,
      execute: async () => {
        if (tracker.currentWidget) {
          await submit(tracker.currentWidget);
        }
      }
    });
    tracker.currentChanged.connect(() => app.commands.notifyCommandChanged(CommandIDs.trainNotebook));
    palette?.addItem({
      command: CommandIDs.trainNotebook,
      category: trans.__('Training')
    });
    app.docRegistry.addWidgetExtension('Notebook', new TrainButton(app, trans.__('Train this notebook')));
  }
};
