import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { URLExt } from '@jupyterlab/coreutils';
import { ServerConnection } from '@jupyterlab/services';
import { ITranslator } from '@jupyterlab/translation';

import { Client, type IServer } from '../api/client';
import { Stream } from '../api/stream';
import { Jobs } from '../model/jobs';
import { IJobs } from '../tokens';
import { languageFor } from './language';

/** The routes of dlaas_server, below the base URL of this Jupyter server, with its authentication. */
class JupyterServer implements IServer {
  constructor(private readonly settings: ServerConnection.ISettings) {
    this.url = URLExt.join(settings.baseUrl, 'dlaas') + '/';
  }

  readonly url: string;

  request(url: string, init: RequestInit): Promise<Response> {
    return ServerConnection.makeRequest(url, init, this.settings);
  }

  socket(path: string): WebSocket {
    let url = URLExt.join(this.settings.wsUrl, 'dlaas', path);
    if (this.settings.appendToken && this.settings.token) {
      url += `?token=${encodeURIComponent(this.settings.token)}`;
    }
    return new this.settings.WebSocket(url);
  }
}

export const api: JupyterFrontEndPlugin<IJobs> = {
  id: 'jupyter-dlaas:api',
  description: 'Provides the training jobs of this page and the one connection they come through.',
  autoStart: true,
  provides: IJobs,
  optional: [ITranslator],
  activate: (app: JupyterFrontEnd, translator: ITranslator | null): IJobs => {
    const server = new JupyterServer(app.serviceManager.serverSettings);
    const client = new Client(server, languageFor(translator).trans);
    const stream = new Stream(server, client);
    return new Jobs(client, stream);
  }
};
