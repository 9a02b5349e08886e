import type { IChange } from '../protocol';

/** State of the last size request, for the scale row. */
export interface IWishState {
  /** Requested learners until the server confirms them; null: as in the job view. */
  learners: number | null;
  /** Requested state of the Auto switch, likewise. */
  elastic: 'manual' | 'auto' | null;
  /** Sent for more than a second, and not yet acknowledged. */
  unconfirmed: boolean;
  /** Reason why the last request was refused; until the next press. */
  refusal: string;
  /** Kind of the request that was refused. */
  refused: 'size' | 'auto' | null;
}

export const NO_WISH: IWishState = {
  learners: null,
  elastic: null,
  unconfirmed: false,
  refusal: '',
  refused: null
};

const GATHER_MS = 300;
const CONFIRM_MS = 1000;

/**
 * The user's size request: shown at once, sent when presses pause, reconciled with the answer. The last press wins.
 *
 * One request is under way at a time: of two, the later could overtake the earlier.
 */
export class Wish {
  constructor(
    private readonly send: (change: IChange) => Promise<void>,
    private readonly changed: () => void
  ) {}

  get state(): IWishState {
    return this.current;
  }

  set(change: IChange): void {
    this.wanted = change;
    this.current = { ...NO_WISH, ...change };
    window.clearTimeout(this.gather);
    window.clearTimeout(this.confirm);
    this.gather = window.setTimeout(() => void this.flush(change), GATHER_MS);
    this.changed();
  }

  dispose(): void {
    window.clearTimeout(this.gather);
    window.clearTimeout(this.confirm);
    this.wanted = null;
    this.due = null;
  }

  private async flush(change: IChange): Promise<void> {
    this.due = change;
    this.confirm = window.setTimeout(() => {
      this.current = { ...this.current, unconfirmed: true };
      this.changed();
    }, CONFIRM_MS);
    if (this.underWay) {
      return; // it is sent as soon as the one before was answered
    }
    this.underWay = true;
    while (this.due) {
      const sent: IChange = this.due;
      this.due = null;
      let refusal = '';
      try {
        await this.send(sent);
      } catch (error) {
        refusal = error instanceof Error ? error.message : String(error);
      }
      this.answered(sent, refusal);
    }
    this.underWay = false;
  }

  private answered(sent: IChange, refusal: string): void {
    if (sent !== this.wanted) {
      return; // a later press is on its way
    }
    window.clearTimeout(this.confirm);
    this.wanted = null;
    const refused = refusal ? ('learners' in sent ? 'size' : 'auto') : null;
    this.current = { ...NO_WISH, refusal, refused };
    this.changed();
  }

  private current = NO_WISH;
  /** The last request, until it is answered. */
  private wanted: IChange | null = null;
  /** The next request to send. */
  private due: IChange | null = null;
  private underWay = false;
  private gather: number | undefined;
  private confirm: number | undefined;
}
