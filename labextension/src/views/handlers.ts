import type { Verb } from '../protocol';

/** A picture among a job's files; null where it is gone. */
export interface IPicture {
  name: string;
  load(): Promise<Blob | null>;
}

/** What a card can ask for; the views call these and nothing else. */
export interface ICardHandlers {
  scale(learners: number): void;
  setElastic(elastic: 'manual' | 'auto'): void;
  act(verb: Verb): void;
  retryConnection(): void;
  /** Let this card talk to the server although the notebook is not trusted. */
  allow(): void;
  copyReport(): void;
  /** Put a text into the clipboard; `what` is how the reader is told. Left out where there is none. */
  copy?(text: string, what: string): void;
  /** Left out where there is no way to open notebooks. */
  goToCell?(): void;
  openMenu(anchor: HTMLElement): void;
  /** Left out where the server may not be asked. */
  pictures?(): Promise<readonly IPicture[]>;
}
