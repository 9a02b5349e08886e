import { LabIcon } from '@jupyterlab/ui-components';

import { svgText } from '../views/controls/Icon';

export const trainingIcon = new LabIcon({
  name: 'jupyter-dlaas:training',
  svgstr: svgText('active')
});
