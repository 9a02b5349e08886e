import { Token } from '@lumino/coreutils';

import type { Jobs } from './model/jobs';

/** The jobs that this page knows and the one connection they come through. */
export type IJobs = Jobs;

export const IJobs = new Token<IJobs>(
  'jupyter-dlaas:IJobs',
  'The training jobs that this page knows: follow one, list all, hear of the pool.'
);
