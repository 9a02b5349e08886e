import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { Clipboard, Dialog, Notification, showDialog } from '@jupyterlab/apputils';
import { INotebookTracker, type NotebookPanel } from '@jupyterlab/notebook';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';
import { Token } from '@lumino/coreutils';

import { type IJobView, isFinal } from '../protocol';
import { IJobs } from '../tokens';
import { openMenu } from './menu';
import { CommandIDs } from './names';
import { textWidget } from './text';

/** What cards and rows need of Lab: the clipboard, menus, dialogs, notebooks. */
export interface ICardServices {
  copyReport(id: string): Promise<void>;
  copy(text: string, what: string): void;
  openMenu(id: string, anchor: HTMLElement): void;
  /** Ask once whether a card of a notebook that is not trusted may talk to the server. */
  ask(id: string): Promise<boolean>;
  /** Tell about a job that an action made, such as a retry. */
  showNew(view: IJobView): void;
  goToCell?(view: IJobView): Promise<void>;
}

export const ICardServices = new Token<ICardServices>(
  'jupyter-dlaas:ICardServices',
  'What a job card needs of the application around it.'
);

const JOB_MENU = [
  CommandIDs.openJob,
  CommandIDs.openNotebook,
  CommandIDs.why,
  CommandIDs.checkpoint,
  CommandIDs.showSource,
  CommandIDs.story,
  CommandIDs.copyName,
  CommandIDs.copyReport,
  CommandIDs.remove
];

async function goToCell(app: JupyterFrontEnd, tracker: INotebookTracker, view: IJobView): Promise<void> {
  const { notebook, cell_id: cellId } = view.origin;
  if (notebook) {
    await app.commands.execute('docmanager:open', { path: notebook });
  }
  const panel: NotebookPanel | null =
    tracker.find(p => p.context.path === notebook) ?? (notebook ? null : tracker.currentWidget);
  if (!panel) {
    return;
  }
  await panel.context.ready;
  await panel.revealed;
  const count = Number(
    view.failure?.where?.label.match(/^cell \[(\d+)\]/)?.[1] ?? view.origin.execution_count
  );
  const cells = panel.content.widgets;
  const byCount = cells.findIndex(
    c => c.model.type === 'code' && c.model.sharedModel.toJSON().execution_count === count
  );
  const byId = cells.findIndex(c => c.model.id === cellId);
  const index = byCount >= 0 ? byCount : byId;
  if (index < 0) {
    return;
  }
  panel.content.activeCellIndex = index;
  await panel.content.scrollToItem(index, 'center');
  const line = view.failure?.where?.line;
  const editor = cells[index].editor;
  if (editor && line !== undefined && byCount >= 0) {
    editor.setCursorPosition({ line: Math.max(0, line - 1), column: 0 });
  }
}

export const services: JupyterFrontEndPlugin<ICardServices> = {
  id: 'jupyter-dlaas:services',
  description: 'Provides menus, dialogs and notebook navigation for job cards.',
  autoStart: true,
  provides: ICardServices,
  requires: [IJobs],
  optional: [INotebookTracker, ITranslator],
  activate: (
    app: JupyterFrontEnd,
    jobs: IJobs,
    tracker: INotebookTracker | null,
    translator: ITranslator | null
  ): ICardServices => {
    const trans = (translator ?? nullTranslator).load('jupyter_dlaas');

    const failed = (error: unknown): void => {
      Notification.error(error instanceof Error ? error.message : String(error), { autoClose: 8000 });
    };

    const copyReport = async (id: string): Promise<void> => {
      try {
        Clipboard.copyToSystem(await jobs.client.report(id));
        Notification.success(trans.__('The report of %1 is in the clipboard.', id), { autoClose: 4000 });
      } catch (error) {
        failed(error);
      }
    };

    const showText = async (title: string, load: () => Promise<string>): Promise<void> => {
      try {
        const body = textWidget(await load());
        await showDialog({
          title,
          body,
          buttons: [Dialog.okButton({ label: trans.__('Close') })]
        });
      } catch (error) {
        failed(error);
      }
    };

    const remove = async (id: string): Promise<void> => {
      const answer = await showDialog({
        title: trans.__('Delete the record of %1?', id),
        body: trans.__('Its log, metrics, checkpoints and results are deleted with it.'),
        buttons: [Dialog.cancelButton(), Dialog.warnButton({ label: trans.__('Delete') })]
      });
      if (answer.button.accept) {
        await jobs.client.remove(id).catch(failed);
      }
    };

    // one set of commands for all menus: the id travels as an argument
    const idOf = (args: { readonly [key: string]: unknown }): string => String(args.id ?? '');
    const described = {
      args: {
        type: 'object' as const,
        properties: {
          id: {
            type: 'string' as const,
            description: 'The job, such as resnet-48'
          }
        }
      }
    };
    app.commands.addCommand(CommandIDs.copyName, {
      label: trans.__('Copy Name'),
      describedBy: described,
      execute: args => Clipboard.copyToSystem(idOf(args))
    });
    app.commands.addCommand(CommandIDs.copyReport, {
      label: trans.__('Copy Report'),
      describedBy: described,
      execute: args => copyReport(idOf(args))
    });
    app.commands.addCommand(CommandIDs.showSource, {
      label: trans.__('Show train.py'),
      describedBy: described,
      execute: args => showText(`${idOf(args)}: train.py`, () => jobs.client.source(idOf(args)))
    });
    app.commands.addCommand(CommandIDs.story, {
      label: trans.__('Story'),
      describedBy: described,
      execute: args =>
        showText(trans.__('Story of %1', idOf(args)), async () =>
          (await jobs.client.story(idOf(args)))
            .map(e => `${new Date(e.atS * 1000).toLocaleTimeString()}  ${e.text}`)
            .join('\n')
        )
    });
    app.commands.addCommand(CommandIDs.openNotebook, {
      label: trans.__('Open Notebook'),
      describedBy: described,
      isVisible: args => Boolean(tracker && jobs.get(idOf(args))?.view.origin.notebook),
      execute: async args => {
        const view = jobs.get(idOf(args))?.view;
        if (view && tracker) {
          await goToCell(app, tracker, view);
        }
      }
    });
    app.commands.addCommand(CommandIDs.remove, {
      label: trans.__('Delete Record…'),
      describedBy: described,
      isVisible: args => {
        const view = jobs.get(idOf(args))?.view;
        return view !== undefined && isFinal(view.state);
      },
      execute: args => remove(idOf(args))
    });

    return {
      copyReport,
      copy: (text, what) => {
        Clipboard.copyToSystem(text);
        Notification.success(trans.__('%1 is in the clipboard.', what), { autoClose: 4000 });
      },
      openMenu: (id, anchor) => openMenu(app.commands, JOB_MENU, { id }, anchor),
      ask: async id => {
        const answer = await showDialog({
          title: trans.__('This notebook is not trusted'),
          body: trans.__(
            'Let its card of %1 talk to this server? The card can then change and end that job.',
            id
          ),
          buttons: [Dialog.cancelButton(), Dialog.okButton({ label: trans.__('Allow for this job') })]
        });
        return answer.button.accept;
      },
      showNew: view => {
        Notification.info(trans.__('%1 was submitted.', view.id), {
          autoClose: 8000
        });
      },
      goToCell: tracker ? view => goToCell(app, tracker, view) : undefined
    };
  }
};
