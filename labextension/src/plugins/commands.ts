import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { Dialog, ICommandPalette, Notification, showDialog } from '@jupyterlab/apputils';
import type { ICodeCellModel } from '@jupyterlab/cells';
import { INotebookTracker } from '@jupyterlab/notebook';
import { ITranslator } from '@jupyterlab/translation';

import type { JobModel } from '../model/job';
import { asBundle, MIME_TYPE, type Verb } from '../protocol';
import { IJobs } from '../tokens';
import { CONFIRMED_MS, showError } from './errors';
import { languageFor } from './language';
import { CommandIDs } from './names';
import { ICardServices } from './services';
import { textWidget } from './text';

/** Return the job whose card stands in the active cell's output: the last one, if there are several. */
function jobOfActiveCell(tracker: INotebookTracker | null): string | null {
  const model = tracker?.activeCell?.model;
  if (model?.type !== 'code') {
    return null;
  }
  const { outputs } = model as ICodeCellModel;
  for (let i = outputs.length - 1; i >= 0; i--) {
    const bundle = asBundle(outputs.get(i).data[MIME_TYPE]);
    if (bundle) {
      return bundle.job.id;
    }
  }
  return null;
}

export const commands: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-dlaas:commands',
  description: 'Adds commands that act on the training job of the active cell.',
  autoStart: true,
  requires: [IJobs, ICardServices],
  optional: [INotebookTracker, ICommandPalette, ITranslator],
  activate: (
    app: JupyterFrontEnd,
    jobs: IJobs,
    services: ICardServices,
    tracker: INotebookTracker | null,
    palette: ICommandPalette | null,
    translator: ITranslator | null
  ): void => {
    const { trans } = languageFor(translator);
    const describedBy = {
      args: {
        type: 'object' as const,
        properties: {
          id: {
            type: 'string' as const,
            description: trans.__(
              'Name of the job, such as resnet-48; without it, the job of the active cell'
            )
          }
        }
      }
    };

    const modelOf = (args: { readonly [key: string]: unknown }): JobModel | undefined => {
      const id = typeof args.id === 'string' && args.id ? args.id : jobOfActiveCell(tracker);
      return id ? jobs.get(id) : undefined;
    };
    const can = (model: JobModel | undefined, action: string): boolean =>
      model?.view.actions.some(a => a.id === action && a.enabled) ?? false;

    const scale = (by: number) => (args: { readonly [key: string]: unknown }) => {
      const model = modelOf(args);
      if (model) {
        model.scale((model.state.wish.learners ?? model.view.size.wish) + by);
      }
    };
    /** Return whether the server accepted the action. */
    const act = (verb: Verb) => async (args: { readonly [key: string]: unknown }) => {
      const model = modelOf(args);
      const view = await model?.act(verb);
      if (model?.state.problem) {
        showError(model.state.problem);
      }
      return Boolean(view);
    };

    app.commands.addCommand(CommandIDs.scaleUp, {
      label: trans.__('Add a Learner to the Job'),
      describedBy,
      isEnabled: args => can(modelOf(args), 'scale'),
      execute: scale(1)
    });
    app.commands.addCommand(CommandIDs.scaleDown, {
      label: trans.__('Remove a Learner from the Job'),
      describedBy,
      isEnabled: args => can(modelOf(args), 'scale'),
      execute: scale(-1)
    });
    app.commands.addCommand(CommandIDs.halt, {
      label: trans.__('Halt the Job'),
      describedBy,
      isEnabled: args => can(modelOf(args), 'halt'),
      execute: async args => {
        const model = modelOf(args);
        const warning = model?.view.actions.find(a => a.id === 'halt')?.confirm;
        if (warning) {
          const answer = await showDialog({
            title: trans.__('Halt %1?', model?.id ?? ''),
            body: warning,
            buttons: [
              Dialog.cancelButton({ label: trans.__('Keep') }),
              Dialog.warnButton({ label: trans.__('Halt job') })
            ]
          });
          if (!answer.button.accept) {
            return;
          }
        }
        await act('halt')(args);
      }
    });
    app.commands.addCommand(CommandIDs.resume, {
      label: trans.__('Resume the Job'),
      describedBy,
      isEnabled: args => can(modelOf(args), 'resume'),
      execute: act('resume')
    });
    app.commands.addCommand(CommandIDs.cancel, {
      label: trans.__('Cancel the Job'),
      describedBy,
      isEnabled: args => can(modelOf(args), 'cancel'),
      execute: async args => {
        const model = modelOf(args);
        const answer = await showDialog({
          title: trans.__('Cancel %1?', model?.id ?? ''),
          body: trans.__('The job ends now and cannot be resumed.'),
          buttons: [
            Dialog.cancelButton({ label: trans.__('Keep') }),
            Dialog.warnButton({ label: trans.__('Cancel job') })
          ]
        });
        if (answer.button.accept) {
          await act('cancel')(args);
        }
      }
    });
    app.commands.addCommand(CommandIDs.checkpoint, {
      label: trans.__('Write a Checkpoint'),
      describedBy,
      isEnabled: args => modelOf(args)?.view.state === 'PROCESSING',
      execute: async args => {
        const id = modelOf(args)?.id ?? '';
        if (await act('checkpoint')(args)) {
          const text = trans.__(
            '%1 writes a checkpoint at its next step; its events show when it is complete.',
            id
          );
          Notification.info(text, { autoClose: CONFIRMED_MS });
        }
      }
    });
    app.commands.addCommand(CommandIDs.why, {
      label: trans.__('Explain the State of the Job'),
      describedBy,
      isEnabled: args => modelOf(args) !== undefined,
      execute: async args => {
        const model = modelOf(args);
        if (!model) {
          return;
        }
        try {
          const sentences = await jobs.client.why(model.id);
          await showDialog({
            title: trans.__('%1: %2', model.id, model.view.state_label),
            body: textWidget(sentences.join('\n')),
            buttons: [Dialog.okButton({ label: trans.__('Close') })]
          });
        } catch (error) {
          showError(error);
        }
      }
    });
    app.commands.addCommand(CommandIDs.goToCell, {
      label: trans.__("Go to the Job's Cell"),
      describedBy,
      isEnabled: args => services.goToCell !== undefined && modelOf(args) !== undefined,
      execute: async args => {
        const model = modelOf(args);
        if (model) {
          await services.goToCell?.(model.view);
        }
      }
    });
    const category = trans.__('Training');
    for (const command of [
      CommandIDs.scaleUp,
      CommandIDs.scaleDown,
      CommandIDs.halt,
      CommandIDs.resume,
      CommandIDs.cancel,
      CommandIDs.checkpoint,
      CommandIDs.why,
      CommandIDs.goToCell
    ]) {
      palette?.addItem({ command, category });
    }
  }
};
