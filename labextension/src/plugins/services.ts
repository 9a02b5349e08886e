import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { Clipboard, Dialog, Notification, showDialog } from '@jupyterlab/apputils';
import { INotebookTracker, type NotebookPanel } from '@jupyterlab/notebook';
import { ITranslator } from '@jupyterlab/translation';
import { Token } from '@lumino/coreutils';

import { type IJobView, isFinal } from '../protocol';
import { IJobs } from '../tokens';
import { CONFIRMED_MS, NOTIFIED_MS, showError } from './errors';
import { languageFor } from './language';
import { openMenu } from './menu';
import { CommandIDs } from './names';
import { textWidget } from './text';

/** Services of JupyterLab for cards and rows: the clipboard, menus, dialogs, notebooks. */
export interface ICardServices {
  copyReport(id: string): Promise<void>;
  /** Copy a text; `name` is how the notification calls it. */
  copy(text: string, name: string): void;
  openMenu(id: string, anchor: HTMLElement): void;
  /** Ask whether the card of a notebook that is not trusted may contact the server. */
  ask(id: string): Promise<boolean>;
  /** Announce a job that an action submitted, such as a retry. */
  showNew(view: IJobView): void;
  goToCell?(view: IJobView): Promise<void>;
}

export const ICardServices = new Token<ICardServices>(
  'jupyter-dlaas:ICardServices',
  'What job cards need of the application: clipboard, menus, dialogs, notebooks.'
);

const JOB_MENU = [
  CommandIDs.openJob,
  CommandIDs.openNotebook,
  CommandIDs.why,
  CommandIDs.checkpoint,
  CommandIDs.showSource,
  CommandIDs.events,
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
    const { trans, format } = languageFor(translator);

    const copyReport = async (id: string): Promise<void> => {
      try {
        Clipboard.copyToSystem(await jobs.client.report(id));
        Notification.success(trans.__('The report of %1 is in the clipboard.', id), {
          autoClose: CONFIRMED_MS
        });
      } catch (error) {
        showError(error);
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
        showError(error);
      }
    };

    const remove = async (id: string): Promise<void> => {
      const answer = await showDialog({
        title: trans.__('Delete the record of %1?', id),
        body: trans.__('This also deletes its log, metrics, checkpoints and results.'),
        buttons: [Dialog.cancelButton(), Dialog.warnButton({ label: trans.__('Delete') })]
      });
      if (answer.button.accept) {
        await jobs.client.remove(id).catch(showError);
      }
    };

    // one set of commands serves all menus; the job is an argument
    const idOf = (args: { readonly [key: string]: unknown }): string => String(args.id ?? '');
    const described = {
      args: {
        type: 'object' as const,
        properties: {
          id: {
            type: 'string' as const,
            description: trans.__('Name of the job, such as resnet-48')
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
      execute: args =>
        showText(trans.__('%1: %2', idOf(args), 'train.py'), () => jobs.client.source(idOf(args)))
    });
    app.commands.addCommand(CommandIDs.events, {
      label: trans.__('Events'),
      describedBy: described,
      execute: args =>
        showText(trans.__('Events of %1', idOf(args)), async () =>
          (await jobs.client.events(idOf(args)))
            .map(event => `${format.clockWithSeconds(event.at_s)}  ${event.text}`)
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
      copy: (text, name) => {
        Clipboard.copyToSystem(text);
        Notification.success(trans.__('%1 is in the clipboard.', name), { autoClose: CONFIRMED_MS });
      },
      openMenu: (id, anchor) => openMenu(app.commands, JOB_MENU, { id }, anchor),
      ask: async id => {
        const answer = await showDialog({
          title: trans.__('This notebook is not trusted'),
          body: trans.__(
            'Allow its card of %1 to contact this server? The card can then change and end that job.',
            id
          ),
          buttons: [Dialog.cancelButton(), Dialog.okButton({ label: trans.__('Allow for this job') })]
        });
        return answer.button.accept;
      },
      showNew: view => {
        Notification.info(trans.__('%1 was submitted.', view.id), { autoClose: NOTIFIED_MS });
      },
      goToCell: tracker ? view => goToCell(app, tracker, view) : undefined
    };
  }
};
