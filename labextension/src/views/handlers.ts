import type { Verb } from '../protocol';

/** A picture among a job's files; `load` returns null if it was deleted. */
export interface IPicture {
  name: string;
  load(): Promise<Blob | null>;
}

/** The actions of a card. Left out: an action that is not possible here. */
export interface ICardHandlers {
  scale(learners: number): void;
  setElastic(elastic: 'manual' | 'auto'): void;
  act(verb: Verb): void;
  retryConnection(): void;
  /** Let this card contact the server although the notebook is not trusted. */
  allow(): void;
  copyReport(): void;
  /** Copy a text; `name` is how the notification calls it. */
  copy?(text: string, name: string): void;
  goToCell?(): void;
  openMenu(anchor: HTMLElement): void;
  pictures?(): Promise<readonly IPicture[]>;
}
