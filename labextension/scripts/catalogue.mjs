/**
 * Extract the messages of this extension into locale/jupyter_dlaas.pot, the template of its translations.
 *
 * Messages are the literal arguments of trans.__(), _n(), _p() and _np(), and the titles and descriptions of the
 * settings' schema. With --check, fail if the template is out of date. A message that is not a literal is an error,
 * because no tool could extract it.
 */
import { readFileSync, readdirSync, writeFileSync } from 'node:fs';
import { join, relative } from 'node:path';
import { fileURLToPath } from 'node:url';
import ts from 'typescript';

const ROOT = fileURLToPath(new URL('..', import.meta.url));
const TEMPLATE = join(ROOT, 'locale', 'jupyter_dlaas.pot');
/** Names of a method's message arguments. */
const METHODS = {
  __: ['id'],
  _n: ['id', 'plural'],
  _p: ['context', 'id'],
  _np: ['context', 'id', 'plural']
};
const SCHEMA_KEYS = new Set(['title', 'description']);

const messages = new Map();
const errors = [];

function add({ context = '', id, plural = '' }, file) {
  const key = `${context}\u0004${id}\u0004${plural}`;
  const message = messages.get(key) ?? { context, id, plural, files: new Set() };
  messages.set(key, message);
  message.files.add(file);
}

function readCalls(path) {
  const file = relative(ROOT, path);
  const source = ts.createSourceFile(path, readFileSync(path, 'utf-8'), ts.ScriptTarget.Latest, true);
  const visit = node => {
    if (ts.isCallExpression(node) && ts.isPropertyAccessExpression(node.expression)) {
      const names = METHODS[node.expression.name.text];
      const literals = names && node.arguments.slice(0, names.length);
      if (literals?.length === names?.length && literals?.every(ts.isStringLiteralLike)) {
        add(Object.fromEntries(literals.map((literal, i) => [names[i], literal.text])), file);
      } else if (names) {
        const { line } = source.getLineAndCharacterOfPosition(node.getStart());
        errors.push(`${file}:${line + 1}: the message is not a literal: ${node.getText().slice(0, 80)}`);
      }
    }
    ts.forEachChild(node, visit);
  };
  visit(source);
}

function readSchema(path, value = JSON.parse(readFileSync(path, 'utf-8'))) {
  for (const [key, inner] of Object.entries(value)) {
    if (SCHEMA_KEYS.has(key) && typeof inner === 'string') {
      add({ context: 'schema', id: inner }, relative(ROOT, path));
    } else if (typeof inner === 'object' && inner !== null) {
      readSchema(path, inner);
    }
  }
}

function entry({ context, id, plural, files }) {
  const quoted = text => JSON.stringify(text);
  return [
    ...[...files].sort().map(file => `#: ${file}`),
    ...(context ? [`msgctxt ${quoted(context)}`] : []),
    `msgid ${quoted(id)}`,
    ...(plural ? [`msgid_plural ${quoted(plural)}`, 'msgstr[0] ""', 'msgstr[1] ""'] : ['msgstr ""'])
  ].join('\n');
}

const HEADER = [
  'msgid ""',
  'msgstr ""',
  '"Project-Id-Version: jupyter_dlaas\\n"',
  '"MIME-Version: 1.0\\n"',
  '"Content-Type: text/plain; charset=UTF-8\\n"',
  '"Content-Transfer-Encoding: 8bit\\n"'
].join('\n');

for (const name of readdirSync(join(ROOT, 'src'), { recursive: true }).sort()) {
  if (/\.tsx?$/.test(name) && !/\.spec\.tsx?$/.test(name)) {
    readCalls(join(ROOT, 'src', name));
  }
}
for (const name of readdirSync(join(ROOT, 'schema')).sort()) {
  readSchema(join(ROOT, 'schema', name));
}
const byId = (a, b) => (a.id < b.id ? -1 : a.id > b.id ? 1 : a.context < b.context ? -1 : 1);
const template = `${[HEADER, ...[...messages.values()].sort(byId).map(entry)].join('\n\n')}\n`;

if (process.argv.includes('--check')) {
  let current = '';
  try {
    current = readFileSync(TEMPLATE, 'utf-8');
  } catch {
    // reported below
  }
  if (current !== template) {
    errors.push(`${relative(ROOT, TEMPLATE)} is out of date: run "jlpm catalogue" and commit it`);
  }
} else if (errors.length === 0) {
  writeFileSync(TEMPLATE, template);
}
if (errors.length) {
  console.error(errors.join('\n'));
  process.exitCode = 1;
}
