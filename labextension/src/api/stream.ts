import { type ISignal, Signal } from '@lumino/signaling';

import {
  asServerMessage,
  type ClientMessage,
  type ICursor,
  type ServerMessage,
  type Want
} from '../protocol';
import { ApiError, type Client, type IServer } from './client';

/** How the page stands with the server. `absent`: a server answers, but our part of it is not enabled. */
export type ConnectionKind = 'idle' | 'connecting' | 'live' | 'polling' | 'lost' | 'absent';

export interface IConnection {
  kind: ConnectionKind;
  /** When something was last heard, in seconds of this page's clock. */
  heardS: number;
  /** When the next attempt is made, while there is none under way. */
  retryS: number | null;
  /** True after 5 s without a word: what is shown may be out of date. */
  stale: boolean;
}

export interface ISubscription {
  want: Want[];
  /** Asked anew at each (re)connection, so that nothing comes twice and nothing is left out. */
  cursor: () => ICursor;
}

export const STALE_AFTER_S = 5;
const DEAD_AFTER_S = 10;
const RETRY_S_MAX = 15;
const POLL_WAIT_S = 10;
const POLL_POOL_EVERY_S = 5;
const SOCKET_AGAIN_S = 60;
const FAILURES_BEFORE_POLLING = 3;
const ACK_EVERY_BYTES = 32 * 1024;
const ACK_EVERY_MS = 50;
const IDLE_CLOSE_MS = 10_000;

/**
 * The one WebSocket of a page, shared by all cards and the panel.
 *
 * Opened with the first subscription, closed some time after the last. Reconnects with growing delays; where no
 * WebSocket gets through, the same messages come by long polling.
 */
export class Stream {
  constructor(
    private readonly server: IServer,
    private readonly client: Client,
    private readonly nowS: () => number = () => Date.now() / 1000
  ) {
    this.state = {
      kind: 'idle',
      heardS: nowS(),
      retryS: null,
      stale: false
    };
  }

  get message(): ISignal<this, ServerMessage> {
    return this.arrived;
  }

  get connectionChanged(): ISignal<this, IConnection> {
    return this.changed;
  }

  get connection(): IConnection {
    return this.state;
  }

  get isDisposed(): boolean {
    return this.disposed;
  }

  dispose(): void {
    if (this.disposed) {
      return;
    }
    this.disposed = true;
    this.close();
    window.clearTimeout(this.idleTimer);
    Signal.clearData(this);
  }

  /** Follow a job, or follow it anew from its cursor. */
  subscribe(job: string, subscription: ISubscription): void {
    const known = this.jobs.has(job);
    this.jobs.set(job, subscription);
    if (this.state.kind === 'polling') {
      this.pollJob(job);
    } else if (this.isOpen()) {
      if (known) {
        this.send({ type: 'unsubscribe', job });
      }
      this.sendSubscribe(job, subscription);
    }
    this.wake();
  }

  unsubscribe(job: string): void {
    if (!this.jobs.delete(job)) {
      return;
    }
    this.polls.get(job)?.abort();
    this.polls.delete(job);
    if (this.isOpen()) {
      this.send({ type: 'unsubscribe', job });
    }
    this.rest();
  }

  watchPool(wanted: boolean): void {
    if (wanted === this.poolWanted) {
      return;
    }
    this.poolWanted = wanted;
    if (this.isOpen()) {
      this.send({ type: wanted ? 'subscribe_pool' : 'unsubscribe_pool' });
    }
    if (wanted) {
      if (this.state.kind === 'polling') {
        this.pollPool();
      }
      this.wake();
    } else {
      this.rest();
    }
  }

  /** Try now instead of at the end of the delay. */
  retry(): void {
    if (this.state.kind === 'lost' || this.state.kind === 'absent') {
      this.failures = this.state.kind === 'absent' ? FAILURES_BEFORE_POLLING - 1 : this.failures;
      this.connect();
    }
  }

  // ---- the socket ----

  private wake(): void {
    window.clearTimeout(this.idleTimer);
    if (this.state.kind === 'idle' && !this.disposed) {
      this.set({ kind: 'connecting', heardS: this.nowS() });
      this.connect();
    }
  }

  private rest(): void {
    if (this.jobs.size === 0 && !this.poolWanted) {
      window.clearTimeout(this.idleTimer);
      this.idleTimer = window.setTimeout(() => {
        if (this.jobs.size === 0 && !this.poolWanted) {
          this.close();
          this.set({ kind: 'idle', retryS: null, stale: false });
        }
      }, IDLE_CLOSE_MS);
    }
  }

  private connect(): void {
    this.close();
    if (this.disposed) {
      return;
    }
    this.set({ retryS: null });
    let socket: WebSocket;
    try {
      socket = this.server.socket('stream');
    } catch {
      this.failed();
      return;
    }
    this.socket = socket;
    socket.onopen = () => {
      if (this.poolWanted) {
        this.send({ type: 'subscribe_pool' });
      }
      for (const [job, subscription] of this.jobs) {
        this.sendSubscribe(job, subscription);
      }
    };
    socket.onmessage = event => this.receive(event.data);
    socket.onclose = () => {
      if (this.socket === socket) {
        this.failed();
      }
    };
    this.openedS = this.nowS();
    this.watch = window.setInterval(() => this.check(), 1000);
  }

  private close(): void {
    window.clearInterval(this.watch);
    window.clearTimeout(this.retryTimer);
    window.clearTimeout(this.ackTimer);
    this.ackTimer = undefined;
    this.unacked = 0;
    this.stopPolls();
    const socket = this.socket;
    this.socket = null;
    if (socket) {
      socket.onopen = socket.onmessage = socket.onclose = null;
      socket.close();
    }
  }

  private isOpen(): boolean {
    return this.socket !== null && this.socket.readyState === 1;
  }

  private send(message: ClientMessage): void {
    this.socket?.send(JSON.stringify(message));
  }

  private sendSubscribe(job: string, subscription: ISubscription): void {
    this.send({
      type: 'subscribe',
      job,
      cursor: subscription.cursor(),
      want: subscription.want
    });
  }

  private receive(data: unknown): void {
    let message: ServerMessage | null = null;
    try {
      message = typeof data === 'string' ? asServerMessage(JSON.parse(data)) : null;
    } catch {
      return; // not ours; the heartbeat tells whether the other side is still well
    }
    if (!message) {
      return;
    }
    this.heard(message.type === 'hello' ? 'live' : undefined);
    if (message.type === 'hello') {
      this.failures = 0;
    }
    if (message.type === 'log' || message.type === 'metrics') {
      this.acknowledge(message.to - message.from);
    }
    this.arrived.emit(message);
  }

  private acknowledge(bytes: number): void {
    this.unacked += bytes;
    if (this.unacked >= ACK_EVERY_BYTES) {
      this.sendAck();
    } else if (this.ackTimer === undefined) {
      this.ackTimer = window.setTimeout(() => this.sendAck(), ACK_EVERY_MS);
    }
  }

  private sendAck(): void {
    window.clearTimeout(this.ackTimer);
    this.ackTimer = undefined;
    if (this.unacked > 0 && this.isOpen()) {
      this.send({ type: 'ack', bytes: this.unacked });
      this.unacked = 0;
    }
  }

  /** Once a second: has the other side gone quiet? */
  private check(): void {
    const nowS = this.nowS();
    const quietS = nowS - this.state.heardS;
    if (quietS > STALE_AFTER_S && !this.state.stale) {
      this.set({ stale: true });
    }
    if (quietS > DEAD_AFTER_S && nowS - this.openedS > DEAD_AFTER_S) {
      this.failed();
    }
  }

  private heard(kind?: ConnectionKind): void {
    const heardS = this.nowS();
    if ((kind && kind !== this.state.kind) || this.state.stale) {
      this.set({
        kind: kind ?? this.state.kind,
        heardS,
        stale: false,
        retryS: null
      });
    } else {
      this.state = { ...this.state, heardS };
    }
  }

  private failed(): void {
    this.close();
    this.failures += 1;
    const baseS = Math.min(RETRY_S_MAX, 0.5 * 2 ** (this.failures - 1));
    const delayS = baseS * (0.8 + 0.4 * Math.random());
    this.again(delayS);
    this.set({ kind: 'lost', retryS: this.nowS() + delayS });
    this.watch = window.setInterval(() => this.checkLost(), 1000);
    if (this.failures >= FAILURES_BEFORE_POLLING) {
      void this.probe();
    }
  }

  private checkLost(): void {
    if (!this.state.stale && this.nowS() - this.state.heardS > STALE_AFTER_S) {
      this.set({ stale: true });
    }
  }

  private again(delayS: number): void {
    window.clearTimeout(this.retryTimer);
    this.retryTimer = window.setTimeout(() => this.connect(), delayS * 1000);
  }

  // ---- long polling ----

  /** No WebSocket came through. Does the server answer at all, and is our part there? */
  private async probe(): Promise<void> {
    const failures = this.failures;
    try {
      await this.client.pool();
    } catch (error) {
      if (this.failures === failures && error instanceof ApiError && error.status === 404) {
        // nobody home: asking on would only fill the console; "Check again" asks
        this.close();
        this.set({ kind: 'absent', retryS: null });
      }
      return;
    }
    if (this.disposed || this.failures !== failures || this.state.kind !== 'lost') {
      return;
    }
    this.close();
    this.set({
      kind: 'polling',
      heardS: this.nowS(),
      stale: false,
      retryS: null
    });
    this.again(SOCKET_AGAIN_S);
    for (const job of this.jobs.keys()) {
      this.pollJob(job);
    }
    if (this.poolWanted) {
      this.pollPool();
    }
  }

  private pollJob(job: string): void {
    this.polls.get(job)?.abort();
    const abort = new AbortController();
    this.polls.set(job, abort);
    void this.pollLoop(job, abort.signal);
  }

  private async pollLoop(job: string, signal: AbortSignal): Promise<void> {
    let delayS = 0.2;
    for (;;) {
      const subscription = this.jobs.get(job);
      if (!subscription || signal.aborted) {
        return;
      }
      try {
        const messages = await this.client.poll(job, subscription.cursor(), POLL_WAIT_S, signal);
        if (signal.aborted) {
          return;
        }
        this.heard();
        for (const message of messages) {
          this.arrived.emit(message);
        }
        delayS = 0.2;
      } catch (error) {
        if (signal.aborted) {
          return;
        }
        if (error instanceof ApiError && error.status === 404) {
          this.arrived.emit({ type: 'gone', job });
          return;
        }
        delayS = Math.min(RETRY_S_MAX, delayS * 2);
        this.checkLost();
      }
      await new Promise(done => window.setTimeout(done, delayS * 1000));
    }
  }

  private pollPool(): void {
    window.clearTimeout(this.poolTimer);
    const round = async (): Promise<void> => {
      try {
        const [pool, jobs] = await Promise.all([this.client.pool(), this.client.jobs()]);
        this.heard();
        this.arrived.emit({ type: 'pool', pool });
        this.arrived.emit({ type: 'jobs', jobs });
      } catch {
        this.checkLost();
      }
      if (this.state.kind === 'polling' && this.poolWanted && !this.disposed) {
        this.poolTimer = window.setTimeout(() => void round(), POLL_POOL_EVERY_S * 1000);
      }
    };
    void round();
  }

  private stopPolls(): void {
    for (const abort of this.polls.values()) {
      abort.abort();
    }
    this.polls.clear();
    window.clearTimeout(this.poolTimer);
  }

  private set(change: Partial<IConnection>): void {
    this.state = { ...this.state, ...change };
    if (!this.disposed) {
      this.changed.emit(this.state);
    }
  }

  private state: IConnection;
  private arrived = new Signal<this, ServerMessage>(this);
  private changed = new Signal<this, IConnection>(this);
  private jobs = new Map<string, ISubscription>();
  private poolWanted = false;
  private socket: WebSocket | null = null;
  private disposed = false;
  private failures = 0;
  private openedS = 0;
  private unacked = 0;
  private polls = new Map<string, AbortController>();
  private watch: number | undefined;
  private retryTimer: number | undefined;
  private ackTimer: number | undefined;
  private idleTimer: number | undefined;
  private poolTimer: number | undefined;
}
