import { type ITranslator, nullTranslator } from '@jupyterlab/translation';

import { DOMAIN, type ILanguage, languageOf } from '../language';

/** Return JupyterLab's display language; English if there is no translator. */
export function languageFor(translator: ITranslator | null): ILanguage {
  const { languageCode } = translator ?? nullTranslator;
  return languageOf((translator ?? nullTranslator).load(DOMAIN), languageCode);
}
