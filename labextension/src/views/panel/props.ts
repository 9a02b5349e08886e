import type { IJobState } from '../../model/job';
import type { IPoolView } from '../../protocol';

export interface IPanelRow {
  id: string;
  state: IJobState;
}

export interface IPanelHandlers {
  scale(id: string, learners: number): void;
  act(id: string, verb: 'halt' | 'resume' | 'cancel' | 'retry'): void;
  openMenu(id: string, anchor: HTMLElement): void;
  openNodeMenu(node: string, anchor: HTMLElement): void;
  showJob(id: string): void;
  retryConnection(): void;
  /** Left out where there is no notebook. */
  insertExample?(): void;
  trainNotebook?(): void;
  openSettings?(): void;
}

export interface IPanelProps {
  pool: IPoolView | null;
  rows: readonly IPanelRow[];
  /** There are more jobs than rows. */
  areMore?: boolean;
  /** Who reads. */
  user: string;
  /** The reader may cordon and drain nodes. */
  isAdmin: boolean;
  /** No part of ours answers at this server. */
  absent: boolean;
  stale: boolean;
  handlers: IPanelHandlers;
}
