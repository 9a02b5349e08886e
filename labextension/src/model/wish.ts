/** How a wish stands, for the scale row. */
export interface IWishState {
  /** What the user wants, until the server has taken it over; null: as the job view says. */
  learners: number | null;
  /** Sent for more than a second, and not yet acknowledged. */
  unconfirmed: boolean;
  /** Why the last wish was refused; until the next press. */
  refusal: string;
}

const GATHER_MS = 300;
const CONFIRM_MS = 1000;

/**
 * The user's wish for a size: shown at once, sent when presses pause, reconciled with the answer. Last press wins.
 */
export class Wish {
  constructor(
    private readonly send: (learners: number) => Promise<void>,
    private readonly changed: () => void
  ) {}

  get state(): IWishState {
    return {
      learners: this.learners,
      unconfirmed: this.unconfirmed,
      refusal: this.refusal
    };
  }

  set(learners: number): void {
    this.learners = learners;
    this.unconfirmed = false;
    this.refusal = '';
    window.clearTimeout(this.gather);
    window.clearTimeout(this.confirm);
    this.gather = window.setTimeout(() => void this.flush(learners), GATHER_MS);
    this.changed();
  }

  dispose(): void {
    window.clearTimeout(this.gather);
    window.clearTimeout(this.confirm);
    this.turn += 1;
  }

  private async flush(learners: number): Promise<void> {
    const turn = ++this.turn;
    this.confirm = window.setTimeout(() => {
      this.unconfirmed = true;
      this.changed();
    }, CONFIRM_MS);
    let refusal = '';
    try {
      await this.send(learners);
    } catch (error) {
      refusal = error instanceof Error ? error.message : String(error);
    }
    if (turn !== this.turn || this.learners !== learners) {
      return; // a later press is on its way
    }
    window.clearTimeout(this.confirm);
    this.learners = null;
    this.unconfirmed = false;
    this.refusal = refusal;
    this.changed();
  }

  private learners: number | null = null;
  private unconfirmed = false;
  private refusal = '';
  private turn = 0;
  private gather: number | undefined;
  private confirm: number | undefined;
}
