import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { Dialog, Notification, ReactWidget } from '@jupyterlab/apputils';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';
import * as React from 'react';

import { ApiError } from '../api/client';
import type { IDrainView } from '../protocol';
import { IJobs } from '../tokens';
import { DrainPreview } from '../views/dialogs/DrainPreview';
import { CommandIDs } from './names';

type Answer = 'drain' | 'cordon' | 'nothing';

export const nodes: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-dlaas:nodes',
  description: 'Lets those who run the pool cordon and drain its nodes.',
  autoStart: true,
  requires: [IJobs],
  optional: [ITranslator],
  activate: (app: JupyterFrontEnd, jobs: IJobs, translator: ITranslator | null): void => {
    const trans = (translator ?? nullTranslator).load('jupyter_dlaas');

    const owner = (job: string): string | null => {
      const found = jobs.get(job)?.view.owner;
      return found === undefined ? null : found === jobs.user ? trans.__('you') : found;
    };
    const isCordoned = (node: string): boolean =>
      Boolean(jobs.pool?.nodes.find(one => one.name === node)?.cordoned);

    const ask = async (view: IDrainView, isNew: boolean): Promise<Answer> => {
      const cordon = Dialog.createButton({
        label: trans.__('Cordon only'),
        accept: false,
        actions: ['cordon']
      });
      const dialog = new Dialog({
        title: trans.__('Drain %1?', view.node),
        body: ReactWidget.create(<DrainPreview view={view} owner={owner} isNew={isNew} />),
        buttons: [
          Dialog.cancelButton({ label: trans.__('Not now') }),
          ...(isCordoned(view.node) ? [] : [cordon]),
          Dialog.okButton({ label: trans.__('Drain %1', view.node) })
        ]
      });
      dialog.node.ariaLabel = trans.__('Drain %1', view.node);
      const { button } = await dialog.launch();
      return button.actions.includes('cordon') ? 'cordon' : button.accept ? 'drain' : 'nothing';
    };

    /** Shows what it would do, and does just that: if the pool changed meanwhile, it is shown anew. */
    const drain = async (node: string): Promise<void> => {
      for (let isNew = false; ; isNew = true) {
        const view = await jobs.client.previewDrain(node);
        const answer = await ask(view, isNew);
        if (answer === 'cordon') {
          await jobs.cordon(node);
        }
        if (answer !== 'drain') {
          return;
        }
        try {
          await jobs.client.drain(node, view.plan);
          return;
        } catch (error) {
          if (!(error instanceof ApiError && error.code === 'not_allowed')) {
            throw error;
          }
        }
      }
    };

    const add = (
      command: string,
      label: string,
      isVisible: (node: string) => boolean,
      act: (node: string) => Promise<void>
    ): void => {
      const nodeOf = (args: { readonly [key: string]: unknown }): string => String(args.node ?? '');
      app.commands.addCommand(command, {
        label,
        describedBy: {
          args: {
            type: 'object',
            properties: { node: { type: 'string', description: 'The node, such as gpu-c' } }
          }
        },
        isVisible: args => isVisible(nodeOf(args)),
        execute: async args => {
          try {
            await act(nodeOf(args));
          } catch (error) {
            Notification.error(error instanceof Error ? error.message : String(error), { autoClose: 8000 });
          }
        }
      });
    };
    add(CommandIDs.drain, trans.__('Drain…'), () => true, drain);
    add(
      CommandIDs.cordon,
      trans.__('Cordon'),
      node => !isCordoned(node),
      node => jobs.cordon(node)
    );
    add(CommandIDs.uncordon, trans.__('Uncordon'), isCordoned, node => jobs.uncordon(node));
  }
};
