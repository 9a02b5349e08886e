import type { IRenderMime } from '@jupyterlab/rendermime-interfaces';
import * as React from 'react';

import { Format } from './format';

export type TranslationBundle = IRenderMime.TranslationBundle;

/** Domain of this extension's catalogue; its messages are extracted by `jlpm catalogue`. */
export const DOMAIN = 'jupyter_dlaas';

/** The user's language: translated texts, and numbers and times in its notation. */
export interface ILanguage {
  readonly trans: TranslationBundle;
  readonly format: Format;
}

/**
 * Choose the locale of numbers and times for JupyterLab's display language.
 *
 * The display language often names no region. Then the browser's preferences do, if they contain the same language:
 * English JupyterLab in a British browser writes 14:31 instead of 02:31 PM.
 */
export function localeOf(languageCode: string, preferred: readonly string[]): string | undefined {
  const code = languageCode.replace('_', '-');
  const regional = preferred.find(tag => tag.toLowerCase().startsWith(`${code.toLowerCase()}-`));
  try {
    return new Intl.Locale(regional ?? code).toString();
  } catch {
    return undefined; // JupyterLab accepts names of languages that the browser does not know
  }
}

export function languageOf(trans: TranslationBundle, languageCode: string): ILanguage {
  return { trans, format: new Format(trans, localeOf(languageCode, navigator.languages)) };
}

export const LanguageContext = React.createContext<ILanguage | null>(null);

/** Return the language that the nearest `LanguageContext` provides. */
export function useLanguage(): ILanguage {
  const language = React.useContext(LanguageContext);
  if (!language) {
    throw new Error('no LanguageContext around this component');
  }
  return language;
}
