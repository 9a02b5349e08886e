import js from '@eslint/js';
import jupyterPlugin from '@jupyter/eslint-plugin';
import { defineConfig, globalIgnores } from 'eslint/config';
import prettier from 'eslint-config-prettier';
import reactHooks from 'eslint-plugin-react-hooks';
import globals from 'globals';
import tseslint from 'typescript-eslint';

// camelCase everywhere; only records on the wire have their names in snake_case
const naming = wireNames => [
  'error',
  { selector: 'default', format: ['camelCase'], leadingUnderscore: 'allow' },
  { selector: 'import', format: ['camelCase', 'PascalCase'] },
  { selector: 'variable', format: ['camelCase', 'PascalCase', 'UPPER_CASE'], leadingUnderscore: 'allow' },
  { selector: 'function', format: ['camelCase', 'PascalCase'] },
  { selector: 'typeLike', format: ['PascalCase'] },
  { selector: 'interface', format: ['PascalCase'], custom: { regex: '^I[A-Z]', match: true } },
  {
    selector: 'objectLiteralProperty',
    format: ['camelCase', 'PascalCase', 'UPPER_CASE', ...(wireNames ? ['snake_case'] : [])],
    leadingUnderscore: 'allowSingleOrDouble'
  },
  ...(wireNames ? [{ selector: 'typeProperty', format: ['camelCase', 'snake_case'] }] : []),
  { selector: ['objectLiteralProperty', 'typeProperty'], modifiers: ['requiresQuotes'], format: null }
];

// properties that hold text for users, beside those that the rule knows
const TEXT_PROPERTIES = [
  'alt',
  'aria-description',
  'aria-label',
  'aria-valuetext',
  'caption',
  'category',
  'cause',
  'confirmLabel',
  'detail',
  'gist',
  'innerText',
  'label',
  'lead',
  'placeholder',
  'text',
  'textContent',
  'title',
  'tooltip'
];
// no-untranslated-string does not look into templates with expressions
const TEMPLATE_WITH_WORDS = 'TemplateElement[value.raw=/\\p{L}{2}/u]';
const UNTRANSLATED = 'Translate the text with trans.__() and its placeholders %1, %2.';

export default defineConfig([
  globalIgnores(['node_modules', 'lib', '**/*.d.ts', 'style/index.js']),
  js.configs.recommended,
  tseslint.configs.recommended,
  { plugins: { jupyter: jupyterPlugin } },
  jupyterPlugin.configs.recommended,
  {
    files: ['**/*.{ts,tsx}'],
    plugins: { 'react-hooks': reactHooks },
    languageOptions: {
      globals: { ...globals.browser },
      parserOptions: { project: 'tsconfig.test.json', sourceType: 'module' }
    },
    rules: {
      '@typescript-eslint/naming-convention': naming(false),
      '@typescript-eslint/no-explicit-any': 'error',
      '@typescript-eslint/no-floating-promises': 'error',
      '@typescript-eslint/no-unused-vars': ['error', { args: 'none' }],
      // all of it is 150 kB, and a card is drawn in the frame in which its output appears
      'jupyter/prefer-lazy-imports': 'off',
      'react-hooks/rules-of-hooks': 'error',
      'react-hooks/exhaustive-deps': 'error',
      'max-lines': ['error', 600],
      'no-console': 'error',
      curly: ['error', 'all'],
      eqeqeq: 'error',
      'prefer-arrow-callback': ['error', { allowNamedFunctions: true }]
    }
  },
  {
    files: ['test/**/*.{ts,tsx}', 'src/protocol.ts', 'src/api/**/*.ts', '**/*.spec.{ts,tsx}'],
    rules: { '@typescript-eslint/naming-convention': naming(true) }
  },
  {
    // `model` and `api` know neither React nor Lab's widgets; views know no network: the arrows of the design
    files: ['src/model/**/*.ts', 'src/api/**/*.ts', 'src/views/**/*.{ts,tsx}'],
    rules: {
      'no-restricted-imports': [
        'error',
        {
          patterns: [
            {
              group: ['@jupyterlab/*', '@lumino/widgets', '**/plugins/*'],
              message: 'Only plugins talk to JupyterLab.'
            }
          ]
        }
      ]
    }
  },
  {
    files: ['src/**/*.{ts,tsx}'],
    ignores: ['**/*.spec.{ts,tsx}'],
    rules: {
      'jupyter/no-untranslated-string': ['error', { checkProperties: TEXT_PROPERTIES }],
      'no-restricted-syntax': [
        'error',
        {
          selector: `JSXElement > JSXExpressionContainer > TemplateLiteral > ${TEMPLATE_WITH_WORDS}`,
          message: UNTRANSLATED
        },
        {
          selector: `JSXAttribute[name.name=/^(title|label|name|gist|text|placeholder|alt|aria-\\w*(label|text|description))$/] ${TEMPLATE_WITH_WORDS}`,
          message: UNTRANSLATED
        }
      ]
    }
  },
  {
    files: ['test/**/*.{ts,tsx}', '**/*.spec.{ts,tsx}'],
    rules: { 'jupyter/no-untranslated-string': 'off' }
  },
  {
    files: ['src/views/**/*.{ts,tsx}'],
    rules: { 'no-restricted-globals': ['error', 'fetch', 'WebSocket'] }
  },
  {
    files: ['scripts/**/*.mjs'],
    languageOptions: { globals: { ...globals.node } }
  },
  prettier
]);
