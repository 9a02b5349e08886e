import type { JupyterFrontEndPlugin } from '@jupyterlab/application';

import { api } from './plugins/api';
import { renderer } from './plugins/renderer';
import { services } from './plugins/services';

export * from './tokens';

const plugins: JupyterFrontEndPlugin<unknown>[] = [api, services, renderer];

export default plugins;
