import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';

import * as golden from '../../test/golden';
import { trans } from '../../test/language';
import type { ClientMessage, ICursor, ServerMessage } from '../protocol';
import { Client, type IServer } from './client';
import { Stream } from './stream';

/** Stands for a WebSocket: the test plays the other side. */
class FakeSocket {
  readyState = 0;
  sent: ClientMessage[] = [];
  onopen: (() => void) | null = null;
  onmessage: ((event: { data: string }) => void) | null = null;
  onclose: (() => void) | null = null;

  send(text: string): void {
    this.sent.push(JSON.parse(text) as ClientMessage);
  }

  close(): void {
    this.readyState = 3;
  }

  open(): void {
    this.readyState = 1;
    this.onopen?.();
    this.say(golden.message('hello'));
  }

  say(message: ServerMessage): void {
    this.onmessage?.({ data: JSON.stringify(message) });
  }

  break(): void {
    this.readyState = 3;
    this.onclose?.();
  }
}

class FakeServer implements IServer {
  readonly url = '/base/dlaas/';
  readonly sockets: FakeSocket[] = [];
  readonly asked: string[] = [];
  answer: (url: string) => { status: number; body: object } = () => ({
    status: 500,
    body: {}
  });

  async request(url: string): Promise<Response> {
    this.asked.push(url);
    const { status, body } = this.answer(url);
    return new Response(JSON.stringify(body), { status });
  }

  socket(): WebSocket {
    const socket = new FakeSocket();
    this.sockets.push(socket);
    return socket as unknown as WebSocket;
  }

  get last(): FakeSocket {
    return this.sockets[this.sockets.length - 1];
  }
}

describe('the stream', () => {
  let server: FakeServer;
  let stream: Stream;
  let cursor: ICursor;
  let heard: ServerMessage[];

  beforeEach(() => {
    vi.useFakeTimers();
    server = new FakeServer();
    stream = new Stream(server, new Client(server, trans), () => Date.now() / 1000);
    cursor = { row: 0, metrics: 0, logs: {} };
    heard = [];
    stream.message.connect((_, message) => void heard.push(message));
  });

  afterEach(() => {
    stream.dispose();
    vi.restoreAllMocks();
    vi.useRealTimers();
  });

  const follow = async (id = 'resnet-48'): Promise<void> => {
    stream.subscribe(id, { want: ['view', 'log', 'metrics'], cursor: () => cursor });
    await vi.advanceTimersByTimeAsync(1); // a poll begins with its first tick
  };

  it('opens one socket for all jobs, with the first subscription', async () => {
    expect(server.sockets).toHaveLength(0);

    await follow();
    await follow('unet-37');
    stream.watchPool(true);
    server.last.open();

    expect(server.sockets).toHaveLength(1);
    expect(server.last.sent.map(m => m.type)).toEqual(['subscribe_pool', 'subscribe', 'subscribe']);
    expect(stream.connection.kind).toBe('live');
  });

  it('comes back after a break and goes on from the cursor', async () => {
    await follow();
    server.last.open();
    cursor = { row: 31, metrics: 166, logs: { '0': 1246 } };
    server.last.break();
    expect(stream.connection.kind).toBe('lost');
    await vi.advanceTimersByTimeAsync(0);
    expect(stream.connection.retryS).toBeGreaterThan(Date.now() / 1000);

    await vi.advanceTimersByTimeAsync(1100);
    server.last.open();

    expect(server.sockets).toHaveLength(2);
    expect(server.last.sent).toEqual([
      {
        type: 'subscribe',
        job: 'resnet-48',
        cursor,
        want: ['view', 'log', 'metrics']
      }
    ]);
    expect(stream.connection.kind).toBe('live');
  });

  it('waits longer after each failure, and at most 15 s', async () => {
    vi.spyOn(Math, 'random').mockReturnValue(0.5);
    server.answer = () => ({ status: 503, body: {} });
    await follow();
    const waits: number[] = [];
    for (let i = 0; i < 12; i++) {
      server.last.break();
      await vi.advanceTimersByTimeAsync(0);
      waits.push((stream.connection.retryS ?? 0) - Date.now() / 1000);
      await vi.advanceTimersByTimeAsync(waits[i] * 1000 + 10);
    }

    expect(waits).toEqual([...waits].sort((x, y) => x - y));
    expect(waits[4]).toBeGreaterThan(waits[1]);
    expect(Math.max(...waits)).toBeCloseTo(15);
    expect(server.sockets).toHaveLength(13);
  });

  it('reconnects soon after a session, however long the delays were before', async () => {
    server.answer = () => ({ status: 503, body: {} });
    await follow();
    for (let i = 0; i < 8; i++) {
      server.last.break();
      await vi.advanceTimersByTimeAsync(0);
      // A socket that stays silent is given up after a time, so go on as soon as it is there.
      await vi.advanceTimersByTimeAsync((stream.connection.retryS ?? 0) * 1000 - Date.now() + 10);
    }
    server.last.open();
    server.last.break();
    await vi.advanceTimersByTimeAsync(0);

    expect((stream.connection.retryS ?? 0) - Date.now() / 1000).toBeCloseTo(0.5);
  });

  it('tries at once when told to', async () => {
    await follow();
    server.last.break();
    await vi.advanceTimersByTimeAsync(0);
    stream.retry();
    await vi.advanceTimersByTimeAsync(1);

    expect(server.sockets).toHaveLength(2);
  });

  it('is stale after five seconds without a word, and opens a new socket after ten', async () => {
    await follow();
    server.last.open();
    await vi.advanceTimersByTimeAsync(4000);
    server.last.say(golden.message('heartbeat'));
    await vi.advanceTimersByTimeAsync(4900);
    expect(stream.connection.stale).toBe(false);

    await vi.advanceTimersByTimeAsync(1200);
    expect(stream.connection.stale).toBe(true);

    await vi.advanceTimersByTimeAsync(6000);
    expect(server.sockets.length).toBeGreaterThan(1);
    server.last.open();
    expect(stream.connection.stale).toBe(false);
  });

  it('acknowledges the bytes that it took', async () => {
    await follow();
    server.last.open();
    server.last.say(golden.message('log'));
    server.last.say(golden.message('metrics'));
    await vi.advanceTimersByTimeAsync(60);

    const bytes = server.last.sent.filter(m => m.type === 'ack').map(m => (m.type === 'ack' ? m.bytes : 0));
    const log = golden.message('log');
    expect(bytes).toEqual([(log.type === 'log' ? log.to - log.from : 0) + 166]);
  });

  it('follows a job anew by leaving it first', async () => {
    await follow();
    server.last.open();
    await follow();

    expect(server.last.sent.map(m => m.type)).toEqual(['subscribe', 'unsubscribe', 'subscribe']);
  });

  it('passes over frames that are not ours', async () => {
    await follow();
    server.last.open();
    server.last.onmessage?.({ data: 'not json' });
    server.last.onmessage?.({ data: '[1]' });

    expect(heard.map(m => m.type)).toEqual(['hello']);
  });

  it('closes the socket some time after the last subscription', async () => {
    await follow();
    server.last.open();
    stream.unsubscribe('resnet-48');
    await vi.advanceTimersByTimeAsync(11_000);

    expect(server.last.readyState).toBe(3);
    expect(stream.connection.kind).toBe('idle');
  });

  it('polls where no socket gets through, with the same messages', async () => {
    server.answer = url =>
      url.includes('/stream?')
        ? { status: 200, body: { messages: [golden.message('job')], cursor } }
        : { status: 200, body: golden.pool() };
    await follow();
    for (let i = 0; i < 3; i++) {
      server.last.break();
      await vi.advanceTimersByTimeAsync(2500);
    }

    expect(stream.connection.kind).toBe('polling');
    expect(heard[0]).toEqual(golden.message('job'));
    expect(server.asked.some(u => u.includes('jobs/resnet-48/stream?row=0&metrics=0&logs=&wait_s='))).toBe(
      true
    );
  });

  it('stops asking where our part of the server is missing, until told to', async () => {
    server.answer = () => ({ status: 404, body: {} });
    await follow();
    for (let i = 0; i < 3; i++) {
      server.last.break();
      await vi.advanceTimersByTimeAsync(2500);
    }
    expect(stream.connection.kind).toBe('absent');
    const tried = server.sockets.length;
    await vi.advanceTimersByTimeAsync(60_000);
    expect(server.sockets).toHaveLength(tried);

    stream.retry();
    await vi.advanceTimersByTimeAsync(1);
    server.last.open();
    expect(stream.connection.kind).toBe('live');
  });
});

describe('the client', () => {
  it('gives the server’s own words when a request is refused', async () => {
    const server = new FakeServer();
    server.answer = () => ({
      status: 422,
      body: { error: { code: 'refused', message: 'the pool has 8 GPUs' } }
    });

    await expect(new Client(server, trans).changeSize('a-1', { learners: 9 })).rejects.toMatchObject({
      code: 'refused',
      message: 'the pool has 8 GPUs',
      status: 422
    });
  });

  it('reads the events of a job', async () => {
    const server = new FakeServer();
    const events = [{ row: 1, at_s: 1000, kind: 'submitted', text: 'Submitted.' }];
    server.answer = () => ({ status: 200, body: { events } });
    const [event] = await new Client(server, trans).events('resnet-48');

    expect([event.at_s, event.text]).toEqual([1000, 'Submitted.']);
  });

  it('asks under the base URL', async () => {
    const server = new FakeServer();
    server.answer = () => ({ status: 200, body: golden.job('processing') });
    await new Client(server, trans).job('resnet-48');

    expect(server.asked).toEqual(['/base/dlaas/jobs/resnet-48']);
  });
});
