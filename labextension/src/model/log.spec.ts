import { describe, expect, it } from 'vitest';

import type { ILogMessage } from '../protocol';
import { pieces, withoutEscapes } from './ansi';
import { Log, overwrite } from './log';

function frame(from: number, text: string, member = 0, atS = 1): ILogMessage {
  return {
    type: 'log',
    job: 'a-1',
    member,
    from,
    to: from + new TextEncoder().encode(text).length,
    text,
    at_s: atS
  };
}

const texts = (log: Log): string[] => log.rows.map(r => r.text);

describe('the log', () => {
  it('joins a line that was cut between two frames', () => {
    const log = new Log();

    log.take(frame(0, 'one\ntw'));
    log.take(frame(6, 'o\nthree\n'));

    expect(texts(log)).toEqual(['one', 'two', 'three']);
    expect(log.count).toBe(3);
  });

  it('shows no line twice when a frame comes again', () => {
    const log = new Log();
    log.take(frame(0, 'one\n'));

    expect(log.take(frame(0, 'one\n'))).toBe('old');
    expect(texts(log)).toEqual(['one']);
  });

  it('says that a frame is missing, and takes nothing after the hole', () => {
    const log = new Log();
    log.take(frame(0, 'one\n'));

    expect(log.take(frame(8, 'three\n'))).toBe('gap');
    expect(log.offsets()).toEqual({ '0': 4 });
    expect(texts(log)).toEqual(['one']);
  });

  it('counts bytes, not characters', () => {
    const log = new Log();

    log.take(frame(0, '✓ größer\n'));

    expect(log.offsets()).toEqual({ '0': 13 });
  });

  it('keeps the offsets of learners apart and numbers their lines', () => {
    const log = new Log();
    log.take(frame(0, 'a\n', 0, 1));
    log.take(frame(0, 'b\n', 3, 2));
    log.take(frame(2, 'c\n', 0, 3));

    expect(log.rows.map(r => r.key)).toEqual(['0:0', '3:0', '0:1']);
  });

  it('puts a replay of several learners in the order of time', () => {
    const log = new Log();
    log.take(frame(0, 'first\n', 0, 1));
    log.take(frame(6, 'third\n', 0, 3));
    log.take(frame(0, 'second\n', 1, 2));

    expect(texts(log)).toEqual(['first', 'second', 'third']);
  });

  it('redraws a progress bar in its line', () => {
    const log = new Log();
    log.take(frame(0, 'epoch 1:  10%\r'));
    log.take(frame(14, 'epoch 1: 100%\ndone\n'));

    expect(texts(log)).toEqual(['epoch 1: 100%', 'done']);
  });

  it('keeps the newest rows and says how many have left', () => {
    const log = new Log(3);
    log.take(frame(0, 'a\nb\nc\nd\ne\n'));

    expect(texts(log)).toEqual(['c', 'd', 'e']);
    expect(log.dropped).toBe(2);
    expect(log.count).toBe(5);
  });

  it('goes on after a mark where bytes were passed over', () => {
    const log = new Log();
    log.take(frame(0, 'a\nhalf'));

    expect(
      log.skip({
        type: 'log_skipped',
        job: 'a-1',
        member: 0,
        from: 6,
        to: 1000
      })
    ).toBe('new');
    expect(log.take(frame(1000, 'z\n'))).toBe('new');
    expect(log.rows.map(r => r.skippedBytes ?? r.text)).toEqual(['a', 'half', 994, 'z']);
  });

  it('counts warnings and errors once, also while their line grows', () => {
    const log = new Log();
    log.take(frame(0, 'UserWarning: od'));
    log.take(frame(15, 'd\nValueError: no\n'));

    expect([log.warnings, log.errors]).toEqual([1, 1]);
  });
});

describe('escape codes', () => {
  it('become looks', () => {
    expect(pieces('\x1b[1;31mred\x1b[0m plain')).toEqual([
      { text: 'red', look: 'red bold' },
      { text: ' plain', look: '' }
    ]);
  });

  it('never reach the page', () => {
    expect(withoutEscapes('\x1b[2K\x1b]0;title\x07a\x1b[38;5;9mb\x1b[m')).toBe('ab');
  });
});

describe('carriage returns', () => {
  it('let later text stand over earlier text', () => {
    expect(overwrite('abcdef\rxy')).toBe('xycdef');
    expect(overwrite('abc\r')).toBe('abc');
  });
});
