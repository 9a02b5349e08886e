import type { Verb } from '../model/job';

/** What a card can ask for; the views call these and nothing else. */
export interface ICardHandlers {
  scale(learners: number): void;
  act(verb: Verb): void;
  retry_connection(): void;
  /** Let this card talk to the server although the notebook is not trusted. */
  allow(): void;
  copy_report(): void;
  /** Left out where there is no way to open notebooks. */
  go_to_cell?(): void;
  open_menu(anchor: HTMLElement): void;
}
