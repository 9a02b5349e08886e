import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { Dialog, Notification, ReactWidget } from '@jupyterlab/apputils';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';
import * as React from 'react';

import { ApiError } from '../api/client';
import type { IDrainView } from '../protocol';
import { IJobs } from '../tokens';
import { DrainPreview } from '../views/drain';
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
    const is_cordoned = (node: string): boolean =>
      Boolean(jobs.pool?.nodes.find(one => one.name === node)?.cordoned);

    const ask = async (view: IDrainView, is_new: boolean): Promise<Answer> => {
      const cordon = Dialog.createButton({
        label: trans.__('Cordon only'),
        accept: false,
        actions: ['cordon']
      });
      const dialog = new Dialog({
        title: trans.__('Drain %1?', view.node),
        body: ReactWidget.create(<DrainPreview view={view} owner={owner} is_new={is_new} />),
        buttons: [
          Dialog.cancelButton({ label: trans.__('Not now') }),
          ...(is_cordoned(view.node) ? [] : [cordon]),
          Dialog.okButton({ label: trans.__('Drain %1', view.node) })
        ]
      });
      dialog.node.ariaLabel = trans.__('Drain %1', view.node);
      const { button } = await dialog.launch();
      return button.actions.includes('cordon') ? 'cordon' : button.accept ? 'drain' : 'nothing';
    };

    /** Shows what it would do, and does just that: if the pool changed meanwhile, it is shown anew. */
    const drain = async (node: string): Promise<void> => {
      for (let is_new = false; ; is_new = true) {
        const view = await jobs.client.preview_drain(node);
        const answer = await ask(view, is_new);
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
      const node_of = (args: { readonly [key: string]: unknown }): string => String(args.node ?? '');
      app.commands.addCommand(command, {
        label,
        describedBy: {
          args: {
            type: 'object',
            properties: { node: { type: 'string', description: 'The node, such as gpu-c' } }
          }
        },
        isVisible: args => isVisible(node_of(args)),
        execute: async args => {
          try {
            await act(node_of(args));
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
      node => !is_cordoned(node),
      node => jobs.cordon(node)
    );
    add(CommandIDs.uncordon, trans.__('Uncordon'), is_cordoned, node => jobs.uncordon(node));
  }
};
