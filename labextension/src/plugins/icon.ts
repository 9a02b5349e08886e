import { LabIcon } from '@jupyterlab/ui-components';

import { svg_text } from '../views/icons';

export const trainingIcon = new LabIcon({
  name: 'jupyter-dlaas:training',
  svgstr: svg_text('active')
});
