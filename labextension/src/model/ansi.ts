/** A piece of a log line that has one look. `look` names CSS classes without their prefix. */
export interface IPiece {
  text: string;
  look: string;
}

const COLOURS = ['black', 'red', 'green', 'yellow', 'blue', 'magenta', 'cyan', 'white'];

// CSI sequences; those ending in `m` set the look, all others are dropped. OSC sequences (titles, links) are dropped.
// eslint-disable-next-line no-control-regex
const ESCAPE = /\x1b\[([0-9;:?]*)([@-~])|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-Z\\-_]/g;

interface ILook {
  bold: boolean;
  underline: boolean;
  colour: string;
}

function step(look: ILook, codes: string): ILook {
  let next = look;
  const numbers = codes === '' ? [0] : codes.split(/[;:]/).map(Number);
  for (let i = 0; i < numbers.length; i++) {
    const n = numbers[i];
    if (n === 0) {
      next = { bold: false, underline: false, colour: '' };
    } else if (n === 1) {
      next = { ...next, bold: true };
    } else if (n === 4) {
      next = { ...next, underline: true };
    } else if (n === 22) {
      next = { ...next, bold: false };
    } else if (n === 24) {
      next = { ...next, underline: false };
    } else if (n >= 30 && n <= 37) {
      next = { ...next, colour: COLOURS[n - 30] };
    } else if (n >= 90 && n <= 97) {
      next = { ...next, colour: COLOURS[n - 90] };
    } else if (n === 39) {
      next = { ...next, colour: '' };
    } else if (n === 38 || n === 48) {
      // 256 and true colours: the theme has no such colour, so the text keeps its own
      i += numbers[i + 1] === 5 ? 2 : numbers[i + 1] === 2 ? 4 : 0;
    }
  }
  return next;
}

function name(look: ILook): string {
  return [look.colour, look.bold ? 'bold' : '', look.underline ? 'underline' : ''].filter(Boolean).join(' ');
}

/** A log line as pieces of one look each; escape codes never reach the page. */
export function pieces(text: string): IPiece[] {
  if (!text.includes('\x1b')) {
    return [{ text, look: '' }];
  }
  const out: IPiece[] = [];
  let look: ILook = { bold: false, underline: false, colour: '' };
  let from = 0;
  for (const match of text.matchAll(ESCAPE)) {
    if (match.index > from) {
      out.push({ text: text.slice(from, match.index), look: name(look) });
    }
    from = match.index + match[0].length;
    if (match[2] === 'm') {
      look = step(look, match[1]);
    }
  }
  if (from < text.length) {
    out.push({ text: text.slice(from), look: name(look) });
  }
  return out;
}

export function withoutEscapes(text: string): string {
  return text.includes('\x1b') ? text.replace(ESCAPE, '') : text;
}
