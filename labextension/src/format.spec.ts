import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';

import { language } from '../test/language';
import { Format } from './format';
import { localeOf } from './language';

type Table = [number, string][];

const TABLE = JSON.parse(
  readFileSync(join(__dirname, '..', '..', 'tests', 'golden', 'formats.json'), 'utf-8')
) as { duration: Table; progress: Table; bytes: Table; number: Table; count: [number, string, string][] };
const { format } = language;

describe('the formats that Python writes, too', () => {
  it.each<[string, Table, (n: number) => string]>([
    ['duration', TABLE.duration, n => format.duration(n)],
    ['progress', TABLE.progress, n => format.progress(n)],
    ['bytes', TABLE.bytes, n => format.bytes(n)],
    ['number', TABLE.number, n => format.significant(n)]
  ])('%s', (_, rows, write) => {
    expect(rows.map(([n]) => [n, write(n)])).toEqual(rows);
  });

  it('count', () => {
    const rows = TABLE.count;

    expect(rows.map(([n, unit]) => [n, unit, format.quantity(n, unit)])).toEqual(rows);
  });
});

describe('a range of remaining time', () => {
  it.each([
    [0, 0.4, '0–1 s', '0 to 1 second'],
    [20, 41, '20–41 s', '20 to 41 seconds'],
    [50, 61, '0–1 min', '0 to 1 minute'],
    [360, 540, '6–9 min', '6 to 9 minutes'],
    [5400, 9000, '1.5–2.5 h', '1.5 to 2.5 hours']
  ])('from %d s to %d s is %s', (lowS, highS, text, spoken) => {
    expect([format.remaining(lowS, highS), format.remainingSpoken(lowS, highS)]).toEqual([text, spoken]);
  });
});

describe('a time of the day', () => {
  const at = (hour: number, minute: number): number => new Date(2026, 1, 3, hour, minute).getTime() / 1000;

  it.each([
    ['en-GB', '09:05–09:20', '11:40–12:05'],
    ['en-US', '9:05–9:20 AM', '11:40 AM–12:05 PM'],
    ['ko', 'AM 9:05–9:20', 'AM 11:40–PM 12:05'],
    ['de', '09:05–09:20', '11:40–12:05']
  ])('in %s is written as there, and the half of the day once', (locale, morning, noon) => {
    const local = new Format(language.trans, locale);
    const plain = (text: string): string =>
      text.replace(/오전/g, 'AM').replace(/오후/g, 'PM').replace(/\s/g, ' ');

    expect(
      [local.clockRange(at(9, 5), at(9, 20)), local.clockRange(at(11, 40), at(12, 5))].map(plain)
    ).toEqual([morning, noon]);
    expect(local.clockRange(at(9, 5), at(9, 5))).toBe(local.clock(at(9, 5)));
  });
});

describe('numbers in other languages', () => {
  it('follow the locale', () => {
    const german = new Format(language.trans, 'de-DE');

    expect([german.count(11730), german.duration(0.3), german.bytes(44_800_000)]).toEqual([
      '11.730',
      '0,3 s',
      '44,8 MB'
    ]);
  });

  it.each([
    ['en', ['en-GB', 'de'], 'en-GB'],
    ['fr_FR', ['en-GB', 'fr-CA'], 'fr-FR'],
    ['de', ['en-US'], 'de'],
    ['no such language', [], undefined]
  ])('%s in a browser that prefers %j is %s', (code, preferred, locale) => {
    expect(localeOf(code, preferred)).toBe(locale);
  });
});
