import { beforeEach, describe, expect, it, vi } from 'vitest';

import * as golden from '../../test/golden';
import type { IConnection } from '../api/stream';
import type { IChange, IJobView, JobMessage } from '../protocol';
import { type IJobBackend, JobModel } from './job';
import { NO_WISH } from './wish';

const CONNECTION: IConnection = {
  kind: 'live',
  receivedS: 0,
  retryS: null,
  stale: false
};

class Door implements IJobBackend {
  readonly connection = CONNECTION;
  readonly asked: IChange[] = [];
  readonly resubscribed: string[] = [];
  refusal: Error | null = null;
  answerS = 0;

  async changeSize(_id: string, change: IChange): Promise<IJobView> {
    this.asked.push(change);
    const row = 100 + this.asked.length;
    const refusal = this.refusal; // decided when it is asked, told when the answer comes
    await new Promise(done => setTimeout(done, 1000 * this.answerS));
    if (refusal) {
      throw refusal;
    }
    const view = golden.job('processing');
    return 'learners' in change
      ? { ...view, row, size: { ...view.size, wish: change.learners } }
      : { ...view, row, ...change };
  }

  async act(): Promise<IJobView> {
    throw new Error('not now');
  }

  resubscribe(id: string): void {
    this.resubscribed.push(id);
  }
}

describe('a job', () => {
  let door: Door;
  let model: JobModel;

  beforeEach(() => {
    vi.useFakeTimers();
    door = new Door();
    model = new JobModel('resnet-48', golden.job('processing'), door, () => Date.now() / 1000);
  });

  const tell = (name: string): void => model.take(golden.message(name) as JobMessage);

  it('draws from the copy at once and from the server as soon as it has told', () => {
    const bundle = golden.bundle();
    model.offerCopy(bundle);

    expect(model.state.curves.get('loss')).toHaveLength(3);
    expect(model.state.log.rows[0].text).toBe(bundle.log[0]);

    tell('metrics');

    expect(model.state.curves.get('loss')).toBeUndefined();
  });

  it('takes no late progress, and all of it once the clock was set back', () => {
    const told = (atS: number, step: number): JobMessage => {
      const message = golden.message('progress') as Extract<JobMessage, { type: 'progress' }>;
      return { ...message, progress: { ...message.progress, at_s: atS, step } };
    };
    model.take(told(5_000_000_000, 10));
    model.take(told(4_999_999_999, 9));
    expect(model.state.progress?.step).toBe(10);

    model.take(told(4_999_990_000, 11));

    expect(model.state.progress?.step).toBe(11);
  });

  it('asks for everything once, then from its cursor on', () => {
    expect(model.cursor()).toEqual({ row: 0, metrics: 0, logs: {} });

    tell('job');
    tell('metrics');
    model.take({
      type: 'log',
      job: 'resnet-48',
      member: 0,
      from: 0,
      to: 3,
      text: 'ab\n',
      at_s: 1
    });

    expect(model.cursor()).toEqual({ row: 31, metrics: 166, logs: { '0': 3 } });
  });

  it('never goes back to an older view, unless another engine holds the pool', () => {
    tell('job');
    model.take({ type: 'job', job: golden.job('queued') });
    expect(model.view.state).toBe('PROCESSING');

    model.newEngine();
    model.take({ type: 'job', job: golden.job('queued') });
    expect(model.view.state).toBe('QUEUED');
  });

  it('asks anew when bytes are missing, and once only', () => {
    tell('log'); // starts at byte 1200
    tell('log');

    expect(door.resubscribed).toEqual(['resnet-48']);

    model.take({
      type: 'log',
      job: 'resnet-48',
      member: 0,
      from: 0,
      to: 1200,
      text: 'x'.repeat(1199) + '\n',
      at_s: 1
    });
    tell('log');

    expect(model.state.log.count).toBe(2);
  });

  it('sends presses within 300 ms as one wish, shown at once', async () => {
    tell('job');
    model.scale(5);
    model.scale(6);
    expect(model.state.wish.learners).toBe(6);

    await vi.advanceTimersByTimeAsync(350);

    expect(door.asked).toEqual([{ learners: 6 }]);
    expect(model.state.wish.learners).toBeNull();
    expect(model.view.size.wish).toBe(6);
  });

  it('gives the number back and keeps the reason when the wish is refused', async () => {
    tell('job');
    door.refusal = new Error('Queue vision may borrow 1 GPU and has borrowed it.');
    model.scale(8);
    await vi.advanceTimersByTimeAsync(350);

    expect(model.state.wish).toEqual({ ...NO_WISH, refusal: door.refusal.message, refused: 'size' });

    model.scale(5);
    expect(model.state.wish.refusal).toBe('');
  });

  it('sends one request at a time, so that none overtakes another, and the last press wins', async () => {
    tell('job');
    door.answerS = 2;
    model.scale(5);
    await vi.advanceTimersByTimeAsync(350);
    model.scale(6);
    await vi.advanceTimersByTimeAsync(350);
    model.scale(7);
    await vi.advanceTimersByTimeAsync(350);
    expect(door.asked).toEqual([{ learners: 5 }]);
    expect(model.state.wish.learners).toBe(7);

    await vi.advanceTimersByTimeAsync(4000);
    expect(door.asked).toEqual([{ learners: 5 }, { learners: 7 }]);
    expect(model.state.wish).toEqual(NO_WISH);
    expect(model.view.size.wish).toBe(7);
  });

  it('sends the press that came while the one before was under way, and only shows its own refusal', async () => {
    tell('job');
    door.answerS = 2;
    door.refusal = new Error('no');
    model.scale(5);
    await vi.advanceTimersByTimeAsync(2200);
    model.scale(6);
    door.refusal = null;
    await vi.advanceTimersByTimeAsync(200);
    expect(model.state.wish).toEqual({ ...NO_WISH, learners: 6 });

    await vi.advanceTimersByTimeAsync(3000);
    expect(door.asked).toEqual([{ learners: 5 }, { learners: 6 }]);
    expect(model.state.wish).toEqual(NO_WISH);
  });

  it('says that a wish is not confirmed while it waits for the answer to the one before', async () => {
    tell('job');
    door.answerS = 5;
    model.scale(5);
    await vi.advanceTimersByTimeAsync(500);
    model.scale(6);
    expect(model.state.wish.unconfirmed).toBe(false);

    await vi.advanceTimersByTimeAsync(1400);
    expect(model.state.wish).toEqual({ ...NO_WISH, learners: 6, unconfirmed: true });
  });

  it.each<[string, (model: JobModel) => void, IChange]>([
    ['Auto, then a size', m => (m.setElastic('auto'), m.scale(3)), { learners: 3 }],
    ['a size, then Auto', m => (m.scale(3), m.setElastic('auto')), { elastic: 'auto' }]
  ])('takes the last of %s', async (_, press, asked) => {
    tell('job');
    press(model);
    await vi.advanceTimersByTimeAsync(350);

    expect(door.asked).toEqual([asked]);
    expect(model.state.wish).toEqual(NO_WISH);
  });

  it('keeps wishes within the bounds of the job', () => {
    model.scale(99);
    expect(model.state.wish.learners).toBe(8);
  });

  it('says why an action did not work', async () => {
    await model.act('halt');

    expect(model.state.problem).toBe('not now');
  });

  it('tells of a preemption and of its end, not of a halt', () => {
    const interrupted = vi.fn();
    model.interrupted.connect(interrupted);
    const view = golden.job('processing');
    const one = view.interruptions![0];
    const take = (row: number, ...more: (typeof one)[]): void =>
      model.take({ type: 'job', job: { ...view, row, interruptions: [one, ...more] } } as JobMessage);

    take(101);
    take(102, { ...one, by: 'halted' });
    expect(interrupted).not.toHaveBeenCalled();

    take(103, { ...one, by: 'halted' }, { ...one, by: 'preempted', text: 'Preempted.', to_s: null });
    take(104, { ...one, by: 'halted' }, { ...one, by: 'preempted', text: 'Preempted.', at_s: 1 });
    expect(interrupted).toHaveBeenCalledTimes(1);

    take(105, { ...one, by: 'halted' }, { ...one, by: 'preempted', text: 'Preempted. It trains again.' });
    expect(interrupted).toHaveBeenCalledTimes(2);
  });

  it('tells once that it has ended, if this page saw it run', () => {
    const ended = vi.fn();
    model.ended.connect(ended);
    tell('job');
    model.take({ type: 'job', job: golden.job('completed') });
    model.take({ type: 'job', job: golden.job('completed') });

    expect(ended).toHaveBeenCalledTimes(1);
  });

  it('does not tell of an end that was before its time', () => {
    const ended = vi.fn();
    model.ended.connect(ended);
    model.take({ type: 'job', job: golden.job('completed') });

    expect(ended).not.toHaveBeenCalled();
  });
});
