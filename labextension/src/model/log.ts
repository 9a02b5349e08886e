import type { ILogMessage, ILogSkippedMessage } from '../protocol';

export type LogLevel = 'plain' | 'warn' | 'error';

/** One line as shown. `line` counts within the learner's log, so (member, line) names it for ever. */
export interface ILogRow {
  key: string;
  member: number;
  line: number;
  atS: number;
  text: string;
  level: LogLevel;
  /** Set on a mark that stands for bytes a slow reader jumped over. */
  skippedBytes?: number;
}

/** Result of a frame: `new` was taken, `old` was known, `gap` has a hole before it. */
export type Taken = 'new' | 'old' | 'gap';

const ERROR = /\b(error|exception|traceback|critical|fatal)\b|Error:|Exception:/i;
const WARNING = /\bwarn(ing)?\b|Warning:/i;

export function levelOf(text: string): LogLevel {
  return ERROR.test(text) ? 'error' : WARNING.test(text) ? 'warn' : 'plain';
}

/** Return what a terminal shows of a line with carriage returns: later text overwrites earlier text. */
export function overwrite(text: string): string {
  if (!text.includes('\r')) {
    return text;
  }
  let shown = '';
  for (const piece of text.split('\r')) {
    // escape codes have no width, so a line that holds some is replaced as a whole
    shown =
      piece.includes('\x1b') || shown.includes('\x1b') ? piece || shown : piece + shown.slice(piece.length);
  }
  return shown;
}

interface IMember {
  /** Bytes of this learner's log that were taken. */
  offset: number;
  line: number;
  /** The text since the last line end; shown, and redrawn as it grows. */
  open: string;
  row: ILogRow | null;
}

/**
 * The log of one job: lines of all its learners, in the order of time, no line twice and none missing.
 *
 * Frames are byte ranges. A frame is taken only if it starts where the last one of its learner ended.
 */
export class Log {
  constructor(private readonly limit = 2000) {}

  /** The rows to show, oldest first; a new array after each change. */
  get rows(): readonly ILogRow[] {
    if (!this.cachedRows) {
      this.cachedRows = this.list.slice();
    }
    return this.cachedRows;
  }

  /** Lines taken in all, also those that are no longer kept. */
  get count(): number {
    let lines = 0;
    for (const member of this.members.values()) {
      lines += member.line + (member.row ? 1 : 0);
    }
    return lines;
  }

  get warnings(): number {
    return this.counts.warn;
  }

  get errors(): number {
    return this.counts.error;
  }

  /** Rows that were taken and have left the page. */
  get dropped(): number {
    return this.gone;
  }

  get lastS(): number | null {
    return this.list.length ? this.list[this.list.length - 1].atS : null;
  }

  offsets(): { [member: string]: number } {
    const out: { [member: string]: number } = {};
    for (const [member, state] of this.members) {
      out[String(member)] = state.offset;
    }
    return out;
  }

  take(frame: ILogMessage): Taken {
    const member = this.member(frame.member);
    if (frame.to <= member.offset) {
      return 'old';
    }
    if (frame.from !== member.offset) {
      return 'gap';
    }
    member.offset = frame.to;
    this.append(frame.member, member, frame.text, frame.at_s);
    this.cachedRows = null;
    return 'new';
  }

  skip(frame: ILogSkippedMessage): Taken {
    const member = this.member(frame.member);
    if (frame.to <= member.offset) {
      return 'old';
    }
    if (frame.from !== member.offset) {
      return 'gap';
    }
    this.close(member);
    member.offset = frame.to;
    const bytes = frame.to - frame.from;
    const atS = this.lastS ?? 0;
    this.insert({
      key: `${frame.member}:skip:${frame.from}`,
      member: frame.member,
      line: member.line,
      atS,
      text: '',
      level: 'plain',
      skippedBytes: bytes
    });
    this.cachedRows = null;
    return 'new';
  }

  private member(number: number): IMember {
    let member = this.members.get(number);
    if (!member) {
      member = { offset: 0, line: 0, open: '', row: null };
      this.members.set(number, member);
    }
    return member;
  }

  private append(number: number, member: IMember, text: string, atS: number): void {
    const pieces = (member.open + text).replace(/\r\n/g, '\n').split('\n');
    const rest = pieces.pop() ?? '';
    for (const piece of pieces) {
      this.show(number, member, piece, atS);
      this.close(member);
    }
    member.open = rest;
    if (rest) {
      this.show(number, member, rest, atS);
    }
  }

  /** Show `text` as the learner's open line. */
  private show(number: number, member: IMember, text: string, atS: number): void {
    const shown = overwrite(text);
    const level = levelOf(shown);
    if (member.row) {
      const row = { ...member.row, text: shown, level };
      const index = this.list.lastIndexOf(member.row);
      if (index >= 0) {
        this.list[index] = row;
      }
      this.countLevel(member.row.level, -1);
      member.row = row;
    } else {
      member.row = {
        key: `${number}:${member.line}`,
        member: number,
        line: member.line,
        atS,
        text: shown,
        level
      };
      this.insert(member.row);
    }
    this.countLevel(level, 1);
  }

  private close(member: IMember): void {
    if (member.row) {
      member.line += 1;
    }
    member.row = null;
    member.open = '';
  }

  /** Insert a row by its time: replays of several learners arrive one after the other. */
  private insert(row: ILogRow): void {
    let at = this.list.length;
    while (at > 0 && this.list[at - 1].atS > row.atS && this.list[at - 1].member !== row.member) {
      at -= 1;
    }
    this.list.splice(at, 0, row);
    if (this.list.length > this.limit) {
      this.list.shift();
      this.gone += 1;
    }
  }

  private countLevel(level: LogLevel, by: number): void {
    if (level !== 'plain') {
      this.counts[level] += by;
    }
  }

  private members = new Map<number, IMember>();
  private list: ILogRow[] = [];
  private cachedRows: readonly ILogRow[] | null = null;
  private counts = { warn: 0, error: 0 };
  private gone = 0;
}
