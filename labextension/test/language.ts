import { Format } from '../src/format';
import type { ILanguage, TranslationBundle } from '../src/language';

/** Replace `%1`, `%2`, … as JupyterLab's gettext does. */
function fill(text: string, args: readonly unknown[]): string {
  return text
    .replace(/%%/g, '%% ')
    .replace(/%(\d+)/g, (_, n: string) => String(args[Number(n) - 1]))
    .replace(/%% /g, '%');
}

/** Make a bundle that translates by a function; JupyterLab's own cannot be loaded without its services. */
function bundleBy(translate: (text: string) => string): TranslationBundle {
  const gettext = (text: string, ...args: unknown[]): string => translate(fill(text, args));
  const ngettext = (one: string, many: string, n: number, ...args: unknown[]): string =>
    translate(fill(n === 1 ? one : many, [n, ...args]));
  const pgettext = (_: string, text: string, ...args: unknown[]): string => gettext(text, ...args);
  const npgettext = (_: string, one: string, many: string, n: number, ...args: unknown[]): string =>
    ngettext(one, many, n, ...args);
  const dcnpgettext = (
    _domain: string,
    _context: string,
    one: string,
    many: string,
    n: number,
    ...args: unknown[]
  ): string => ngettext(one, many, n, ...args);
  return {
    __: gettext,
    _n: ngettext,
    _p: pgettext,
    _np: npgettext,
    gettext,
    ngettext,
    pgettext,
    npgettext,
    dcnpgettext
  };
}

function languageBy(translate: (text: string) => string): ILanguage {
  const trans = bundleBy(translate);
  return { trans, format: new Format(trans, 'en-US') };
}

/** American English, whatever the machine's locale is. */
export const language = languageBy(text => text);
export const { trans } = language;

/** A language in which each translated text is put in brackets, so that an untranslated one can be seen. */
export const pseudoLanguage = languageBy(text => `⟦${text}⟧`);
