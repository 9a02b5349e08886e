import { Debouncer, type IPoll, Poll } from '@lumino/polling';
import { type ISignal, Signal } from '@lumino/signaling';

import {
  asServerMessage,
  type ClientMessage,
  type ICursor,
  type ServerMessage,
  type Want
} from '../protocol';
import { ApiError, type Client, type IServer } from './client';

/** State of the connection. `absent`: a server answers, but its dlaas_server extension is not enabled. */
export type ConnectionKind = 'idle' | 'connecting' | 'live' | 'polling' | 'lost' | 'absent';

export interface IConnection {
  kind: ConnectionKind;
  /** Time of the last message, in seconds of this page's clock. */
  receivedS: number;
  /** Time of the next attempt, while none is under way. */
  retryS: number | null;
  /** No message came for 5 s: what is shown may be out of date. */
  stale: boolean;
}

export interface ISubscription {
  want: Want[];
  /** Read at each (re)connection, so that nothing comes twice and nothing is left out. */
  cursor: () => ICursor;
}

export const STALE_AFTER_S = 5;
const DEAD_AFTER_S = 10;
/** Growing, randomised delays between attempts to connect; the first is at most half a second. */
const RECONNECT: IPoll.Frequency = { interval: 500, backoff: 3, max: 15_000 };
const JOB_POLL: IPoll.Frequency = { interval: 200, backoff: 3, max: 15_000 };
const POOL_POLL: IPoll.Frequency = { interval: 5000, backoff: 3, max: 15_000 };
const WATCH: IPoll.Frequency = { interval: 1000, backoff: false, max: 1000 };
/** The server may hold a long poll for this long. */
const LONG_POLL_S = 10;
const SOCKET_AGAIN_MS = 60_000;
const FAILURES_BEFORE_POLLING = 3;
const ACK_EVERY_BYTES = 32 * 1024;
const ACK_EVERY_MS = 50;
const IDLE_CLOSE_MS = 10_000;

/** Make a poll that also runs in hidden pages, whose notifications and titles must stay up to date. */
function newPoll(options: {
  name: string;
  auto: boolean;
  factory: () => Promise<void>;
  frequency: IPoll.Frequency;
}): Poll {
  const poll = new Poll({ ...options, standby: 'never' });
  poll.frequency = options.frequency; // the constructor raises `max` to 30 s
  return poll;
}

/** A long poll of one job, which can be aborted. */
interface IJobPoll {
  poll: Poll;
  abort: AbortController;
}

/** A WebSocket connection from its opening to its end. */
interface ISession {
  socket: WebSocket;
  openedS: number;
  /** The server has said hello. */
  isLive: boolean;
  end: () => void;
}

/**
 * The one WebSocket of a page, shared by all cards and the panel.
 *
 * Opened with the first subscription, closed some time after the last. Reconnects with growing delays; where no
 * WebSocket connection is possible, the same messages come by long polling.
 */
export class Stream {
  constructor(
    private readonly server: IServer,
    private readonly client: Client,
    private readonly nowS: () => number = () => Date.now() / 1000
  ) {
    this.state = { kind: 'idle', receivedS: nowS(), retryS: null, stale: false };
    // one round is one session: it fails if the server never said hello, and then the delays grow
    this.reconnect = newPoll({
      name: 'jupyter-dlaas:reconnect',
      auto: false,
      factory: () => this.openSession(),
      frequency: RECONNECT
    });
    this.reconnect.ticked.connect((_, { phase, interval }) => {
      if (this.state.kind === 'lost' && phase !== 'stopped') {
        this.set({ retryS: this.nowS() + interval / 1000 });
      }
    });
    this.watch = newPoll({
      name: 'jupyter-dlaas:watch',
      auto: false,
      factory: () => Promise.resolve(this.checkSilence()),
      frequency: WATCH
    });
    this.closeWhenIdle = new Debouncer(() => this.closeIfIdle(), IDLE_CLOSE_MS);
  }

  get message(): ISignal<this, ServerMessage> {
    return this.messageSignal;
  }

  get connectionChanged(): ISignal<this, IConnection> {
    return this.connectionSignal;
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
    this.reconnect.dispose();
    this.watch.dispose();
    this.closeWhenIdle.dispose();
    Signal.clearData(this);
  }

  /** Follow a job, or follow it anew from its cursor. */
  subscribe(job: string, subscription: ISubscription): void {
    const isKnown = this.jobs.has(job);
    this.jobs.set(job, subscription);
    if (this.state.kind === 'polling') {
      this.pollJob(job);
    } else if (this.isOpen()) {
      if (isKnown) {
        this.send({ type: 'unsubscribe', job });
      }
      this.sendSubscribe(job, subscription);
    }
    this.connect();
  }

  unsubscribe(job: string): void {
    if (!this.jobs.delete(job)) {
      return;
    }
    this.stopJobPoll(job);
    if (this.isOpen()) {
      this.send({ type: 'unsubscribe', job });
    }
    this.scheduleClose();
  }

  watchPool(isWanted: boolean): void {
    if (isWanted === this.isPoolWanted) {
      return;
    }
    this.isPoolWanted = isWanted;
    if (this.isOpen()) {
      this.send({ type: isWanted ? 'subscribe_pool' : 'unsubscribe_pool' });
    }
    if (!isWanted) {
      this.poolPoll?.dispose();
      this.scheduleClose();
      return;
    }
    if (this.state.kind === 'polling') {
      this.pollPool();
    }
    this.connect();
  }

  /** Try now instead of at the end of the delay. */
  retry(): void {
    if (this.state.kind === 'absent') {
      this.failures = FAILURES_BEFORE_POLLING - 1;
    }
    if (this.state.kind === 'lost' || this.state.kind === 'absent') {
      void this.reconnect.refresh();
    }
  }

  // ---- the socket ----

  private connect(): void {
    if (this.state.kind === 'idle' && !this.disposed) {
      this.set({ kind: 'connecting', receivedS: this.nowS() });
      void this.reconnect.start();
    }
  }

  private scheduleClose(): void {
    if (!this.disposed) {
      void this.closeWhenIdle.invoke();
    }
  }

  private closeIfIdle(): void {
    if (this.jobs.size === 0 && !this.isPoolWanted) {
      this.close();
      void this.reconnect.stop();
      this.set({ kind: 'idle', retryS: null, stale: false });
    }
  }

  /** Open a socket. The promise ends with the session: rejected if the server never said hello. */
  private openSession(): Promise<void> {
    this.close();
    this.set({ retryS: null });
    return new Promise((resolve, reject) => {
      let socket: WebSocket;
      try {
        socket = this.server.socket('stream');
      } catch (error) {
        this.reportLost();
        reject(error as Error);
        return;
      }
      const session: ISession = {
        socket,
        openedS: this.nowS(),
        isLive: false,
        end: () => (session.isLive ? resolve() : reject(new Error('no connection')))
      };
      this.session = session;
      socket.onopen = () => this.subscribeAll();
      socket.onmessage = event => this.receive(event.data);
      socket.onclose = () => {
        if (this.session === session) {
          this.endSession(session);
        }
      };
      void this.watch.start();
    });
  }

  private subscribeAll(): void {
    if (this.isPoolWanted) {
      this.send({ type: 'subscribe_pool' });
    }
    for (const [job, subscription] of this.jobs) {
      this.sendSubscribe(job, subscription);
    }
  }

  /** The connection broke: report it, and let `reconnect` try again. */
  private endSession(session: ISession): void {
    this.close();
    this.reportLost();
    session.end();
  }

  private reportLost(): void {
    this.failures += 1;
    this.set({ kind: 'lost' });
    void this.watch.start();
    if (this.failures >= FAILURES_BEFORE_POLLING) {
      void this.probe();
    }
  }

  private close(): void {
    void this.watch.stop();
    window.clearTimeout(this.ackTimer);
    this.ackTimer = undefined;
    this.unacknowledged = 0;
    this.stopPolls();
    const { session } = this;
    this.session = null;
    if (session) {
      const { socket } = session;
      socket.onopen = socket.onmessage = socket.onclose = null;
      socket.close();
    }
  }

  private isOpen(): boolean {
    return this.session !== null && this.session.socket.readyState === 1;
  }

  private send(message: ClientMessage): void {
    this.session?.socket.send(JSON.stringify(message));
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
      return; // not a message of dlaas_server; missing heartbeats show whether it still runs
    }
    if (!message) {
      return;
    }
    if (message.type === 'hello') {
      this.failures = 0;
      if (this.session) {
        this.session.isLive = true;
      }
    }
    this.markReceived(message.type === 'hello' ? 'live' : undefined);
    if (message.type === 'log' || message.type === 'metrics') {
      this.acknowledge(message.to - message.from);
    }
    this.messageSignal.emit(message);
  }

  private acknowledge(bytes: number): void {
    this.unacknowledged += bytes;
    if (this.unacknowledged >= ACK_EVERY_BYTES) {
      this.sendAck();
    } else if (this.ackTimer === undefined) {
      this.ackTimer = window.setTimeout(() => this.sendAck(), ACK_EVERY_MS);
    }
  }

  private sendAck(): void {
    window.clearTimeout(this.ackTimer);
    this.ackTimer = undefined;
    if (this.unacknowledged > 0 && this.isOpen()) {
      this.send({ type: 'ack', bytes: this.unacknowledged });
      this.unacknowledged = 0;
    }
  }

  /** Once a second: mark the state stale after a silence, and give up a silent socket. */
  private checkSilence(): void {
    const nowS = this.nowS();
    const silenceS = nowS - this.state.receivedS;
    if (silenceS > STALE_AFTER_S && !this.state.stale) {
      this.set({ stale: true });
    }
    const { session } = this;
    if (session && silenceS > DEAD_AFTER_S && nowS - session.openedS > DEAD_AFTER_S) {
      this.endSession(session);
    }
  }

  private markReceived(kind?: ConnectionKind): void {
    const receivedS = this.nowS();
    if ((kind && kind !== this.state.kind) || this.state.stale) {
      this.set({ kind: kind ?? this.state.kind, receivedS, stale: false, retryS: null });
    } else {
      this.state = { ...this.state, receivedS };
    }
  }

  // ---- long polling ----

  /** No WebSocket connection was possible: find out whether the server answers, and has our extension. */
  private async probe(): Promise<void> {
    const { failures } = this;
    const isOutdated = (): boolean =>
      this.disposed || this.failures !== failures || this.state.kind !== 'lost';
    try {
      await this.client.pool();
    } catch (error) {
      if (!isOutdated() && error instanceof ApiError && error.status === 404) {
        // further requests would only fill the browser's console; "Check again" calls `retry`
        this.close();
        void this.reconnect.stop();
        this.set({ kind: 'absent', retryS: null });
      }
      return;
    }
    if (!isOutdated()) {
      this.startPolling();
    }
  }

  private startPolling(): void {
    this.close();
    void this.reconnect.schedule({ interval: SOCKET_AGAIN_MS, phase: 'standby' });
    this.set({ kind: 'polling', receivedS: this.nowS(), stale: false, retryS: null });
    for (const job of this.jobs.keys()) {
      this.pollJob(job);
    }
    if (this.isPoolWanted) {
      this.pollPool();
    }
  }

  private pollJob(job: string): void {
    this.stopJobPoll(job);
    const abort = new AbortController();
    const poll = newPoll({
      name: `jupyter-dlaas:job-${job}`,
      auto: true,
      factory: () => this.requestMessages(job, abort.signal),
      frequency: JOB_POLL
    });
    this.jobPolls.set(job, { poll, abort });
  }

  private async requestMessages(job: string, signal: AbortSignal): Promise<void> {
    const subscription = this.jobs.get(job);
    if (!subscription) {
      this.stopJobPoll(job);
      return;
    }
    try {
      const messages = await this.client.poll(job, subscription.cursor(), LONG_POLL_S, signal);
      if (signal.aborted) {
        return;
      }
      this.markReceived();
      messages.forEach(message => this.messageSignal.emit(message));
    } catch (error) {
      if (signal.aborted) {
        return;
      }
      if (error instanceof ApiError && error.status === 404) {
        this.stopJobPoll(job);
        this.messageSignal.emit({ type: 'gone', job });
        return;
      }
      this.checkSilence();
      throw error; // the next request comes later
    }
  }

  private pollPool(): void {
    this.poolPoll?.dispose();
    this.poolPoll = newPoll({
      name: 'jupyter-dlaas:pool',
      auto: true,
      factory: () => this.requestPool(),
      frequency: POOL_POLL
    });
  }

  private async requestPool(): Promise<void> {
    try {
      const [pool, jobs] = await Promise.all([this.client.pool(), this.client.jobs()]);
      this.markReceived();
      this.messageSignal.emit({ type: 'pool', pool });
      this.messageSignal.emit({ type: 'jobs', jobs });
    } catch (error) {
      this.checkSilence();
      throw error;
    }
  }

  private stopJobPoll(job: string): void {
    const jobPoll = this.jobPolls.get(job);
    this.jobPolls.delete(job);
    jobPoll?.abort.abort();
    jobPoll?.poll.dispose();
  }

  private stopPolls(): void {
    for (const job of [...this.jobPolls.keys()]) {
      this.stopJobPoll(job);
    }
    this.poolPoll?.dispose();
    this.poolPoll = null;
  }

  private set(change: Partial<IConnection>): void {
    this.state = { ...this.state, ...change };
    if (!this.disposed) {
      this.connectionSignal.emit(this.state);
    }
  }

  private state: IConnection;
  private readonly messageSignal = new Signal<this, ServerMessage>(this);
  private readonly connectionSignal = new Signal<this, IConnection>(this);
  private readonly jobs = new Map<string, ISubscription>();
  private readonly reconnect: Poll;
  private readonly watch: Poll;
  private readonly closeWhenIdle: Debouncer;
  private readonly jobPolls = new Map<string, IJobPoll>();
  private poolPoll: Poll | null = null;
  private session: ISession | null = null;
  private isPoolWanted = false;
  private disposed = false;
  private failures = 0;
  private unacknowledged = 0;
  private ackTimer: number | undefined;
}
