import type { IJobState } from '../../model/job';
import type { IPoolView } from '../../protocol';

export interface IPanelRow {
  id: string;
  state: IJobState;
}

/** The actions of the panel. */
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
  hasMore?: boolean;
  /** Name of the user of this page. */
  user: string;
  /** The user may cordon and drain nodes. */
  isAdmin: boolean;
  /** This Jupyter server has no dlaas_server extension. */
  absent: boolean;
  stale: boolean;
  handlers: IPanelHandlers;
  nowS: number;
}
