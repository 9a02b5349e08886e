import { DisposableDelegate, type IDisposable } from '@lumino/disposable';
import { type ISignal, Signal } from '@lumino/signaling';

import type { Client } from '../api/client';
import type { IConnection, Stream } from '../api/stream';
import {
  type IBundle,
  type IChange,
  type IHelloMessage,
  type IJobView,
  type IPoolView,
  isFinal,
  type ServerMessage,
  type Verb,
  type Want
} from '../protocol';
import { type IJobBackend, JobModel } from './job';

interface IFollowed {
  cards: number;
  rows: number;
  /** An ended job that has gone quiet: still shown, but no longer subscribed to. */
  settled: boolean;
}

const SETTLED_AFTER_MS = 2500;

/** Return at most `limit` jobs: those under way first, then the queue in its order, then the others in their order. */
export function firstOf<T extends { view: IJobView }>(all: readonly T[], limit: number): readonly T[] {
  if (all.length <= limit) {
    return all;
  }
  const rank = ({ view }: T): number => {
    if (view.state === 'QUEUED') {
      return view.place ?? Number.MAX_SAFE_INTEGER;
    }
    return isFinal(view.state) || view.state === 'HALTED' ? Number.MAX_VALUE : 0;
  };
  return [...all].sort((a, b) => rank(a) - rank(b)).slice(0, limit);
}

/** The jobs that this page knows, each once, however many views show it. */
export class Jobs implements IJobBackend {
  constructor(
    readonly client: Client,
    private readonly stream: Stream
  ) {
    stream.message.connect(this.receive, this);
    stream.connectionChanged.connect(this.connectionChanged, this);
  }

  /** The list of jobs, the pool or the connection changed. */
  get changed(): ISignal<this, void> {
    return this.change;
  }

  get ended(): ISignal<this, IJobView> {
    return this.end;
  }

  /** A job was preempted, or lost learners. */
  get interrupted(): ISignal<this, IJobView> {
    return this.interruption;
  }

  /** An ended job has sent nothing for a while: its last state is known. */
  get settled(): ISignal<this, JobModel> {
    return this.settle;
  }

  get connection(): IConnection {
    return this.stream.connection;
  }

  get pool(): IPoolView | null {
    return this.currentPool;
  }

  /** Name of the pool of this server; empty while it is not known. */
  get poolName(): string {
    return this.helloPool;
  }

  /** Name of the user of this page. */
  get user(): string {
    return this.helloUser || (this.currentPool?.user ?? '');
  }

  /** The user may cordon and drain nodes. */
  get isAdmin(): boolean {
    return this.helloAdmin;
  }

  /** Jobs that the pool listed, newest first. */
  get list(): readonly JobModel[] {
    return [...this.listed]
      .map(id => this.models.get(id))
      .filter((m): m is JobModel => m !== undefined)
      .sort((a, b) => b.view.submitted_s - a.view.submitted_s || b.view.number - a.view.number);
  }

  /** Return at most `limit` jobs; see `firstOf`. */
  first(limit: number): readonly JobModel[] {
    return firstOf(this.list, limit);
  }

  get(id: string): JobModel | undefined {
    return this.models.get(id);
  }

  retry(): void {
    this.stream.retry();
  }

  /** The job of a card. Draws from the bundle at once, then follows the job until disposed. */
  open(bundle: IBundle): IDisposable & { model: JobModel } {
    const id = bundle.job.id;
    const model = this.ensure(bundle.job);
    model.offerCopy(bundle);
    const release = this.follow(id, 'cards');
    return Object.assign(release, { model });
  }

  /** The job's card somewhere else than in a cell's output. */
  openView(view: IJobView): IDisposable & { model: JobModel } {
    const model = this.ensure(view);
    return Object.assign(this.follow(view.id, 'cards'), { model });
  }

  /** Follow a job's view and progress only, for a row of the panel. */
  followRow(id: string): IDisposable {
    return this.follow(id, 'rows');
  }

  /** Follow all jobs and the pool until disposed. */
  watchPool(): IDisposable {
    this.poolWatchers += 1;
    this.stream.watchPool(true);
    return new DisposableDelegate(() => {
      this.poolWatchers -= 1;
      if (this.poolWatchers === 0) {
        this.stream.watchPool(false);
      }
    });
  }

  changeSize(id: string, change: IChange): Promise<IJobView> {
    return this.client.changeSize(id, change);
  }

  async act(id: string, verb: Verb): Promise<IJobView> {
    const view = await this.client.act(id, verb);
    if (view.id !== id) {
      this.add(view);
    }
    return view;
  }

  /** Keep new learners away from a node; running ones stay. */
  async cordon(node: string): Promise<void> {
    this.takePool(await this.client.cordon(node));
  }

  /** Let a node take learners again; ends a drain. */
  async uncordon(node: string): Promise<void> {
    this.takePool(await this.client.uncordon(node));
  }

  /** Add a job that the server has just returned. */
  add(view: IJobView): void {
    this.listed.add(view.id);
    this.ensure(view).take({ type: 'job', job: view });
    this.change.emit();
  }

  resubscribe(id: string): void {
    const want = this.wanted(id);
    const entry = this.followed.get(id);
    if (want && entry) {
      entry.settled = false;
      this.stream.subscribe(id, {
        want,
        cursor: () => this.ensureId(id).cursor()
      });
    }
  }

  dispose(): void {
    for (const timer of this.settleTimers.values()) {
      window.clearTimeout(timer);
    }
    for (const model of this.models.values()) {
      model.dispose();
    }
    this.models.clear();
    Signal.clearData(this);
  }

  private follow(id: string, kind: 'cards' | 'rows'): IDisposable {
    const entry = this.followed.get(id) ?? { cards: 0, rows: 0, settled: false };
    this.followed.set(id, entry);
    const before = this.wanted(id)?.length;
    entry[kind] += 1;
    if (this.wanted(id)?.length !== before || entry.settled) {
      this.resubscribe(id);
    }
    return new DisposableDelegate(() => {
      const had = this.wanted(id)?.length;
      entry[kind] -= 1;
      const want = this.wanted(id);
      if (!want) {
        window.clearTimeout(this.settleTimers.get(id));
        this.settleTimers.delete(id);
        this.followed.delete(id);
        this.stream.unsubscribe(id);
      } else if (want.length !== had && !entry.settled) {
        this.resubscribe(id);
      }
    });
  }

  private wanted(id: string): Want[] | null {
    const entry = this.followed.get(id);
    if (!entry || entry.cards + entry.rows === 0) {
      return null;
    }
    return entry.cards > 0 ? ['view', 'log', 'metrics'] : ['view'];
  }

  /** Unsubscribe from an ended job that has gone quiet, so that a page of old cards keeps no engine running. */
  private settleWhenQuiet(id: string): void {
    const entry = this.followed.get(id);
    const model = this.models.get(id);
    if (!entry || entry.settled || !model?.isLive || !isFinal(model.view.state)) {
      return;
    }
    window.clearTimeout(this.settleTimers.get(id));
    const settle = (): void => {
      this.settleTimers.delete(id);
      entry.settled = true;
      this.stream.unsubscribe(id);
      this.settle.emit(model);
    };
    this.settleTimers.set(id, window.setTimeout(settle, SETTLED_AFTER_MS));
  }

  private ensure(view: IJobView): JobModel {
    let model = this.models.get(view.id);
    if (!model) {
      model = new JobModel(view.id, view, this);
      model.ended.connect((_, ended) => this.end.emit(ended));
      model.interrupted.connect((_, interrupted) => this.interruption.emit(interrupted));
      this.models.set(view.id, model);
    }
    return model;
  }

  private ensureId(id: string): JobModel {
    const model = this.models.get(id);
    if (!model) {
      throw new Error(`no job ${id} on this page`);
    }
    return model;
  }

  private receive(_: Stream, message: ServerMessage): void {
    switch (message.type) {
      case 'hello':
        this.takeHello(message);
        return;
      case 'pool':
        this.takePool(message.pool);
        return;
      case 'jobs':
        this.listed = new Set(message.jobs.map(job => job.id));
        for (const job of message.jobs) {
          this.ensure(job).take({ type: 'job', job });
        }
        this.change.emit();
        return;
      case 'job':
        this.listed.add(message.job.id);
        this.ensure(message.job).take(message);
        this.settleWhenQuiet(message.job.id);
        this.change.emit();
        return;
      case 'gone':
        this.models.get(message.job)?.take(message);
        this.listed.delete(message.job);
        this.change.emit();
        return;
      case 'error':
        if (message.job && message.code === 'not_found') {
          this.models.get(message.job)?.take({ type: 'gone', job: message.job });
        }
        return;
      case 'heartbeat':
        return;
      default:
        this.models.get(message.job)?.take(message);
        this.settleWhenQuiet(message.job);
    }
  }

  private takePool(pool: IPoolView): void {
    this.currentPool = pool;
    this.change.emit();
  }

  private takeHello(hello: IHelloMessage): void {
    if (this.engine && this.engine !== hello.engine) {
      for (const model of this.models.values()) {
        model.newEngine();
      }
    }
    this.engine = hello.engine;
    this.helloPool = hello.pool;
    this.helloUser = hello.user;
    this.helloAdmin = hello.is_admin ?? false;
    this.change.emit();
  }

  private connectionChanged(): void {
    for (const [id] of this.followed) {
      this.models.get(id)?.connectionChanged();
    }
    this.change.emit();
  }

  /** Unfinished jobs that this page lists, for the status bar and Lab's running list. */
  get unfinished(): readonly JobModel[] {
    return this.list.filter(m => !isFinal(m.view.state));
  }

  private models = new Map<string, JobModel>();
  private followed = new Map<string, IFollowed>();
  private settleTimers = new Map<string, number>();
  private listed = new Set<string>();
  private currentPool: IPoolView | null = null;
  private poolWatchers = 0;
  private engine = '';
  private helloPool = '';
  private helloUser = '';
  private helloAdmin = false;
  private readonly change = new Signal<this, void>(this);
  private readonly end = new Signal<this, IJobView>(this);
  private readonly interruption = new Signal<this, IJobView>(this);
  private readonly settle = new Signal<this, JobModel>(this);
}
