import { beforeEach, describe, expect, it, vi } from 'vitest';

import type { IConnection } from '../src/api/stream';
import { type IJobDoor, JobModel } from '../src/model/job';
import type { IJobView, JobMessage } from '../src/protocol';
import * as golden from './golden';

const CONNECTION: IConnection = {
  kind: 'live',
  heard_s: 0,
  retry_s: null,
  stale: false
};

class Door implements IJobDoor {
  readonly connection = CONNECTION;
  readonly scaled: number[] = [];
  readonly resubscribed: string[] = [];
  refusal: Error | null = null;

  async scale(_id: string, learners: number): Promise<IJobView> {
    this.scaled.push(learners);
    if (this.refusal) {
      throw this.refusal;
    }
    const view = golden.job('processing');
    return {
      ...view,
      row: 100 + learners,
      size: { ...view.size, wish: learners }
    };
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
    model.offer_copy(bundle);

    expect(model.state.curves.get('loss')).toHaveLength(3);
    expect(model.state.log.rows[0].text).toBe(bundle.log[0]);

    tell('metrics');

    expect(model.state.curves.get('loss')).toBeUndefined();
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

    model.new_engine();
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

    expect(door.scaled).toEqual([6]);
    expect(model.state.wish.learners).toBeNull();
    expect(model.view.size.wish).toBe(6);
  });

  it('gives the number back and keeps the reason when the wish is refused', async () => {
    tell('job');
    door.refusal = new Error('Queue vision may borrow 1 GPU and has borrowed it.');
    model.scale(8);
    await vi.advanceTimersByTimeAsync(350);

    expect(model.state.wish).toEqual({
      learners: null,
      unconfirmed: false,
      refusal: door.refusal.message
    });

    model.scale(5);
    expect(model.state.wish.refusal).toBe('');
  });

  it('keeps wishes within the bounds of the job', () => {
    model.scale(99);
    expect(model.state.wish.learners).toBe(8);
  });

  it('says why an action did not work', async () => {
    await model.act('halt');

    expect(model.state.problem).toBe('not now');
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
