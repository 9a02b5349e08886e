import { type ISignal, Signal } from '@lumino/signaling';

import type { IConnection } from '../api/stream';
import {
  asNumber,
  type IBundle,
  type IChange,
  type ICursor,
  type IJobView,
  type IProgress,
  isFinal,
  type JobMessage,
  type Point,
  type Verb
} from '../protocol';
import { type ILogRow, levelOf, Log } from './log';
import { Metrics } from './metrics';
import { type IWishState, NO_WISH, Wish } from './wish';

export interface ILogState {
  rows: readonly ILogRow[];
  count: number;
  warnings: number;
  errors: number;
  dropped: number;
  lastS: number | null;
}

/** Everything a view needs of one job; replaced, never changed. */
export interface IJobState {
  view: IJobView;
  progress: IProgress | null;
  curves: ReadonlyMap<string, readonly Point[]>;
  /** Sources of curves, as far as they are known: run, callback, tensorboard, log. */
  sources: ReadonlyMap<string, string>;
  log: ILogState;
  wish: IWishState;
  connection: IConnection;
  /** True once the server has sent the job; before that the copy in the notebook is shown. */
  live: boolean;
  /** The record was removed from the pool. */
  gone: boolean;
  /** Error of the last action of this page. */
  problem: string;
}

/** The requests of a job to the server. */
export interface IJobBackend {
  readonly connection: IConnection;
  changeSize(id: string, change: IChange): Promise<IJobView>;
  act(id: string, verb: Verb): Promise<IJobView>;
  /** Subscribe again from the cursor: a frame is missing. */
  resubscribe(id: string): void;
}

const RESUBSCRIBE_PATIENCE_S = 5;

/** One job as this page knows it: view, progress, curves, log, the user's wish. */
export class JobModel {
  constructor(
    readonly id: string,
    view: IJobView,
    private readonly backend: IJobBackend,
    private readonly nowS: () => number = () => Date.now() / 1000
  ) {
    this.current = view;
    this.wish = new Wish(
      async change => this.takeView(await this.backend.changeSize(this.id, change)),
      () => this.emit()
    );
  }

  get changed(): ISignal<this, void> {
    return this.change;
  }

  /** Emitted once, when a job that this page saw running ends. */
  get ended(): ISignal<this, IJobView> {
    return this.end;
  }

  /** Emitted when the job was preempted or lost learners, and when it trains again or they were replaced. */
  get interrupted(): ISignal<this, IJobView> {
    return this.interruption;
  }

  get view(): IJobView {
    return this.current;
  }

  get isLive(): boolean {
    return this.live;
  }

  get state(): IJobState {
    if (!this.cachedState) {
      const useCopy = this.copy && this.metrics.offset === 0;
      const logCopy = this.copy && this.log.count === 0;
      this.cachedState = {
        view: this.current,
        progress: this.progress ?? this.current.progress,
        curves: useCopy && this.copy ? copiedCurves(this.copy) : this.metrics.curves,
        sources: this.metrics.sources,
        log: logCopy && this.copy ? copiedLog(this.copy) : this.logState(),
        wish: this.wish.state,
        connection: this.backend.connection,
        live: this.live,
        gone: this.gone,
        problem: this.problem
      };
    }
    return this.cachedState;
  }

  /** Show the copy in the notebook until the server sends the job. */
  offerCopy(bundle: IBundle): void {
    this.copy = bundle;
    if (!this.live) {
      this.current = bundle.job;
    }
    this.emit();
  }

  cursor(): ICursor {
    return {
      row: this.live ? this.current.row : 0,
      metrics: this.metrics.offset,
      logs: this.log.offsets()
    };
  }

  take(message: JobMessage): void {
    switch (message.type) {
      case 'job':
        this.takeView(message.job);
        return;
      case 'progress':
        if (isNewer(message.progress, this.progress)) {
          this.progress = message.progress;
          this.emit();
        }
        return;
      case 'log':
        this.taken(this.log.take(message));
        return;
      case 'log_skipped':
        this.taken(this.log.skip(message));
        return;
      case 'metrics':
        this.taken(this.metrics.take(message));
        return;
      case 'gone':
        this.gone = true;
        this.emit();
    }
  }

  /** Accept any row next: another engine serves the pool, and its rows need not follow the former one's. */
  newEngine(): void {
    this.anyRow = true;
  }

  connectionChanged(): void {
    this.emit();
  }

  scale(learners: number): void {
    const { min, max } = this.current.size;
    this.wish.set({ learners: Math.min(max, Math.max(min, learners)) });
  }

  /** Let the user choose the size from now on, or the speed at each size. */
  setElastic(elastic: 'manual' | 'auto'): void {
    this.wish.set({ elastic });
  }

  async act(verb: Verb): Promise<IJobView | null> {
    this.problem = '';
    try {
      const view = await this.backend.act(this.id, verb);
      if (view.id === this.id) {
        this.takeView(view);
      }
      return view;
    } catch (error) {
      this.problem = error instanceof Error ? error.message : String(error);
      this.emit();
      return null;
    }
  }

  dispose(): void {
    this.wish.dispose();
    Signal.clearData(this);
  }

  private takeView(view: IJobView): void {
    if (this.live && view.row < this.current.row && !this.anyRow) {
      return;
    }
    const ended = this.live && !isFinal(this.current.state) && isFinal(view.state);
    const last = view.interruptions?.at(-1);
    // begun, over, or learners were replaced: each has words of its own
    const interrupted =
      this.live && !!last && last.by !== 'halted' && last.text !== this.current.interruptions?.at(-1)?.text;
    if (view.progress && isNewer(view.progress, this.progress)) {
      this.progress = view.progress;
    }
    this.current = view;
    this.live = true;
    this.gone = false;
    this.anyRow = false;
    this.problem = '';
    this.emit();
    if (ended) {
      this.end.emit(view);
    } else if (interrupted) {
      this.interruption.emit(view);
    }
  }

  private taken(result: 'new' | 'old' | 'gap'): void {
    if (result === 'new') {
      this.resubscribedS = 0;
      this.emit();
    } else if (result === 'gap' && this.nowS() - this.resubscribedS > RESUBSCRIBE_PATIENCE_S) {
      // frames of the old subscription may still be under way: ask once, then wait for the answer
      this.resubscribedS = this.nowS();
      this.backend.resubscribe(this.id);
    }
  }

  private logState(): ILogState {
    const { rows, count, warnings, errors, dropped, lastS } = this.log;
    return { rows, count, warnings, errors, dropped, lastS };
  }

  private emit(): void {
    this.cachedState = null;
    this.change.emit();
  }

  private current: IJobView;
  private progress: IProgress | null = null;
  private live = false;
  private gone = false;
  private anyRow = false;
  private problem = '';
  private resubscribedS = 0;
  private copy: IBundle | null = null;
  private cachedState: IJobState | null = null;
  private readonly log = new Log();
  private readonly metrics = new Metrics();
  private readonly wish: Wish;
  private readonly change = new Signal<this, void>(this);
  private readonly end = new Signal<this, IJobView>(this);
  private readonly interruption = new Signal<this, IJobView>(this);
}

/** A message that seems later than this is new: the clock of the pool's machine was set back. */
const LATE_S = 60;

function isNewer(progress: IProgress, known: IProgress | null): boolean {
  return known === null || progress.at_s >= known.at_s || known.at_s - progress.at_s > LATE_S;
}

function copiedCurves(bundle: IBundle): ReadonlyMap<string, readonly Point[]> {
  return new Map(
    Object.entries(bundle.curves)
      .filter(([, points]) => Array.isArray(points) && points.length > 0)
      .map(([name, points]) => [name, points.map(([step, t, value]) => [step, t, asNumber(value)])])
  );
}

function copiedLog(bundle: IBundle): ILogState {
  const rows = bundle.log.map((text, line) => ({
    key: `copy:${line}`,
    member: -1,
    line,
    atS: 0,
    text,
    level: levelOf(text)
  }));
  const warnings = rows.filter(r => r.level === 'warn').length;
  const errors = rows.filter(r => r.level === 'error').length;
  return {
    rows,
    count: rows.length,
    warnings,
    errors,
    dropped: 0,
    lastS: null
  };
}

/** Return the state of a job's copy in the notebook, for a card that may not or cannot contact the server. */
export function stateOfCopy(bundle: IBundle, connection: IConnection): IJobState {
  return {
    view: bundle.job,
    progress: bundle.job.progress,
    curves: copiedCurves(bundle),
    sources: new Map(),
    log: copiedLog(bundle),
    wish: NO_WISH,
    connection,
    live: false,
    gone: false,
    problem: ''
  };
}
