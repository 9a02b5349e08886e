import { render as renderBare, type RenderResult } from '@testing-library/react';
import * as React from 'react';

import { LanguageContext } from '../src/language';
import { language as english } from './language';

/** Render in a language, as every place in JupyterLab does that shows our components. */
export function render(element: React.JSX.Element, language = english): RenderResult {
  return renderBare(<LanguageContext.Provider value={language}>{element}</LanguageContext.Provider>);
}
