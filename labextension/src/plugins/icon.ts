import { LabIcon } from '@jupyterlab/ui-components';

import { svgText } from '../views/icons';

export const trainingIcon = new LabIcon({
  name: 'jupyter-dlaas:training',
  svgstr: svgText('active')
});
