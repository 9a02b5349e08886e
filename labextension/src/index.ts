import type { JupyterFrontEndPlugin } from '@jupyterlab/application';

import { api } from './plugins/api';
import { commands } from './plugins/commands';
import { nodes } from './plugins/nodes';
import { notifications } from './plugins/notifications';
import { panel } from './plugins/panel';
import { renderer } from './plugins/renderer';
import { running } from './plugins/running';
import { services } from './plugins/services';
import { snapshot } from './plugins/snapshot';
import { status } from './plugins/status';
import { train } from './plugins/train';

export * from './tokens';

const plugins: JupyterFrontEndPlugin<unknown>[] = [
  api,
  services,
  renderer,
  panel,
  commands,
  nodes,
  status,
  notifications,
  running,
  snapshot,
  train
];

export default plugins;
