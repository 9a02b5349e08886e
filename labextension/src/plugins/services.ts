import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { Clipboard, Dialog, Notification, showDialog } from '@jupyterlab/apputils';
import { INotebookTracker, type NotebookPanel } from '@jupyterlab/notebook';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';
import { Token } from '@lumino/coreutils';

import { type IJobView, isFinal } from '../protocol';
import { IJobs } from '../tokens';
import { open_menu } from './menu';
import { CommandIDs } from './names';
import { text_widget } from './text';

/** What cards and rows need of Lab: the clipboard, menus, dialogs, notebooks. */
export interface ICardServices {
  copy_report(id: string): Promise<void>;
  copy(text: string, what: string): void;
  open_menu(id: string, anchor: HTMLElement): void;
  /** Ask once whether a card of a notebook that is not trusted may talk to the server. */
  ask(id: string): Promise<boolean>;
  /** Tell about a job that an action made, such as a retry. */
  show_new(view: IJobView): void;
  go_to_cell?(view: IJobView): Promise<void>;
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

async function go_to_cell(app: JupyterFrontEnd, tracker: INotebookTracker, view: IJobView): Promise<void> {
  const { notebook, cell_id } = view.origin;
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
  const by_count = cells.findIndex(
    c => c.model.type === 'code' && c.model.sharedModel.toJSON().execution_count === count
  );
  const by_id = cells.findIndex(c => c.model.id === cell_id);
  const index = by_count >= 0 ? by_count : by_id;
  if (index < 0) {
    return;
  }
  panel.content.activeCellIndex = index;
  await panel.content.scrollToItem(index, 'center');
  const line = view.failure?.where?.line;
  const editor = cells[index].editor;
  if (editor && line !== undefined && by_count >= 0) {
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

    const copy_report = async (id: string): Promise<void> => {
      try {
        Clipboard.copyToSystem(await jobs.client.report(id));
        Notification.success(trans.__('The report of %1 is in the clipboard.', id), { autoClose: 4000 });
      } catch (error) {
        failed(error);
      }
    };

    const show_text = async (title: string, load: () => Promise<string>): Promise<void> => {
      try {
        const body = text_widget(await load());
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
    const id_of = (args: { readonly [key: string]: unknown }): string => String(args.id ?? '');
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
      execute: args => Clipboard.copyToSystem(id_of(args))
    });
    app.commands.addCommand(CommandIDs.copyReport, {
      label: trans.__('Copy Report'),
      describedBy: described,
      execute: args => copy_report(id_of(args))
    });
    app.commands.addCommand(CommandIDs.showSource, {
      label: trans.__('Show train.py'),
      describedBy: described,
      execute: args => show_text(`${id_of(args)}: train.py`, () => jobs.client.source(id_of(args)))
    });
    app.commands.addCommand(CommandIDs.story, {
      label: trans.__('Story'),
      describedBy: described,
      execute: args =>
        show_text(trans.__('Story of %1', id_of(args)), async () =>
          (await jobs.client.story(id_of(args)))
            .map(e => `${new Date(e.at_s * 1000).toLocaleTimeString()}  ${e.text}`)
            .join('\n')
        )
    });
    app.commands.addCommand(CommandIDs.openNotebook, {
      label: trans.__('Open Notebook'),
      describedBy: described,
      isVisible: args => Boolean(tracker && jobs.get(id_of(args))?.view.origin.notebook),
      execute: async args => {
        const view = jobs.get(id_of(args))?.view;
        if (view && tracker) {
          await go_to_cell(app, tracker, view);
        }
      }
    });
    app.commands.addCommand(CommandIDs.remove, {
      label: trans.__('Delete Record…'),
      describedBy: described,
      isVisible: args => {
        const view = jobs.get(id_of(args))?.view;
        return view !== undefined && isFinal(view.state);
      },
      execute: args => remove(id_of(args))
    });

    return {
      copy_report,
      copy: (text, what) => {
        Clipboard.copyToSystem(text);
        Notification.success(trans.__('%1 is in the clipboard.', what), { autoClose: 4000 });
      },
      open_menu: (id, anchor) => open_menu(app.commands, JOB_MENU, { id }, anchor),
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
      show_new: view => {
        Notification.info(trans.__('%1 was submitted.', view.id), {
          autoClose: 8000
        });
      },
      go_to_cell: tracker ? view => go_to_cell(app, tracker, view) : undefined
    };
  }
};
