import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { Dialog, ReactWidget } from '@jupyterlab/apputils';
import { ITranslator } from '@jupyterlab/translation';
import * as React from 'react';

import { ApiError } from '../api/client';
import { LanguageContext } from '../language';
import type { IDrainView } from '../protocol';
import { IJobs } from '../tokens';
import { DrainPreview } from '../views/dialogs/DrainPreview';
import { showError } from './errors';
import { languageFor } from './language';
import { CommandIDs } from './names';

type Answer = 'drain' | 'cordon' | 'nothing';

export const nodes: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-dlaas:nodes',
  description: 'Adds commands with which administrators cordon and drain nodes.',
  autoStart: true,
  requires: [IJobs],
  optional: [ITranslator],
  activate: (app: JupyterFrontEnd, jobs: IJobs, translator: ITranslator | null): void => {
    const language = languageFor(translator);
    const { trans } = language;

    const owner = (job: string): string | null => {
      const name = jobs.get(job)?.view.owner;
      return name === undefined ? null : name === jobs.user ? trans.__('you') : name;
    };
    const isCordoned = (node: string): boolean =>
      Boolean(jobs.pool?.nodes.find(other => other.name === node)?.cordoned);

    const ask = async (view: IDrainView, isNew: boolean): Promise<Answer> => {
      const cordon = Dialog.createButton({
        label: trans.__('Cordon only'),
        accept: false,
        actions: ['cordon']
      });
      const dialog = new Dialog({
        title: trans.__('Drain %1?', view.node),
        body: ReactWidget.create(
          <LanguageContext.Provider value={language}>
            <DrainPreview view={view} owner={owner} isNew={isNew} />
          </LanguageContext.Provider>
        ),
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

    /** Show what draining would do, and do just that; if the pool changed meanwhile, ask again. */
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
            properties: { node: { type: 'string', description: trans.__('Name of the node, such as gpu-c') } }
          }
        },
        isVisible: args => isVisible(nodeOf(args)),
        execute: async args => {
          try {
            await act(nodeOf(args));
          } catch (error) {
            showError(error);
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
