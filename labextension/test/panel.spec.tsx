import { cleanup, fireEvent, render, screen, within } from '@testing-library/react';
import * as React from 'react';
import { afterEach, describe, expect, it, vi } from 'vitest';

import { state_of_copy } from '../src/model/job';
import { first_of } from '../src/model/jobs';
import type { IDrainView, IJobView } from '../src/protocol';
import { DrainPreview } from '../src/views/drain';
import { type IPanelHandlers, type IPanelRow, Panel } from '../src/views/panel';
import { status_text } from '../src/views/statusitem';
import { cells_that_go, name_of } from '../src/views/trainform';
import * as golden from './golden';

const NOW_S = 1_773_497_801;
const CONNECTION = {
  kind: 'live' as const,
  heard_s: NOW_S,
  retry_s: null,
  stale: false
};

const row = (view: IJobView): IPanelRow => ({
  id: view.id,
  state: state_of_copy({ ...golden.bundle(), job: view }, CONNECTION)
});

function handlers() {
  return {
    scale: vi.fn<IPanelHandlers['scale']>(),
    act: vi.fn<IPanelHandlers['act']>(),
    open_menu: vi.fn(),
    open_node_menu: vi.fn<IPanelHandlers['open_node_menu']>(),
    show_job: vi.fn(),
    retry_connection: vi.fn(),
    insert_example: vi.fn(),
    train_notebook: vi.fn()
  };
}

function show(views: IJobView[], more: { absent?: boolean; is_admin?: boolean } = {}) {
  const called = handlers();
  render(
    <Panel
      pool={more.absent ? null : golden.pool()}
      rows={views.map(row)}
      user="ana"
      is_admin={more.is_admin ?? false}
      absent={more.absent ?? false}
      stale={false}
      handlers={called}
      now_s={NOW_S}
    />
  );
  return called;
}

const running = golden.job('processing');
const failed = golden.job('failed');
const waiting = {
  ...golden.job('queued'),
  id: 'vit-49',
  number: 49,
  origin: { ...running.origin, notebook: 'text.ipynb' }
};

afterEach(cleanup);

describe('a list of more jobs than are shown', () => {
  it('has those under way, then the first in line, then the newest ended', () => {
    const queued = [5, 4, 3].map(place => ({ view: { ...waiting, id: `vit-${50 + place}`, place } }));
    const ended = [9, 8].map(n => ({ view: { ...failed, id: `old-${n}` } }));
    const all = [...queued, { view: running }, ...ended];
    const ids = (most: number): string[] => first_of(all, most).map(one => one.view.id);

    expect(ids(3)).toEqual([running.id, 'vit-53', 'vit-54']);
    expect(ids(5)).toEqual([running.id, 'vit-53', 'vit-54', 'vit-55', 'old-9']);
    expect(ids(6)).toEqual(all.map(one => one.view.id));
  });
});

describe('the panel', () => {
  it('draws each device with its job', () => {
    show([running]);
    const pool = screen.getByRole('group', { name: 'Node gpu-c' });

    expect(within(pool).getByRole('button', { name: 'gpu-c · 0: vae-43' })).toBeDefined();
    expect(within(pool).getByRole('img', { name: 'gpu-c · 2: free' })).toBeDefined();
    expect(
      within(pool).getByRole('img', {
        name: 'gpu-c · 3: out of service, Xid 79 since 13:52'
      })
    ).toBeDefined();
  });

  it('says which node is being drained, what queues have, and how good start estimates were', () => {
    show([running]);
    expect(screen.getByText('gpu-a is being drained by ana.')).toBeTruthy();
    expect(screen.getByText('default 2 · research 6 of 6')).toBeTruthy();
    expect(screen.getByText(/^Of the last 50 start estimates 41 held/)).toBeTruthy();
  });

  it('has a menu at each node for those who run the pool, and for nobody else', () => {
    const called = show([running], { is_admin: true });
    const node = screen.getByRole('group', { name: 'Node gpu-c' });
    fireEvent.click(within(node).getByRole('button', { name: 'Actions for node gpu-c' }));

    expect(called.open_node_menu).toHaveBeenCalledExactlyOnceWith('gpu-c', expect.anything());
    cleanup();
    show([running]);
    expect(screen.queryByRole('button', { name: /^Actions for node/ })).toBeNull();
  });

  it('lists jobs by notebook and scales, retries and opens them', () => {
    const called = show([running, failed, waiting]);
    const list = screen.getByRole('list', { name: 'Jobs of cifar10.ipynb' });
    expect(within(list).getAllByRole('listitem')).toHaveLength(2);

    fireEvent.click(screen.getByRole('button', { name: 'Add a GPU to resnet-48' }));
    fireEvent.click(screen.getByRole('button', { name: 'Retry unet-37' }));
    fireEvent.click(within(list).getByRole('button', { name: 'resnet-48' }));

    expect(called.scale).toHaveBeenCalledExactlyOnceWith('resnet-48', 5);
    expect(called.act).toHaveBeenCalledExactlyOnceWith('unet-37', 'retry');
    expect(called.show_job).toHaveBeenCalledExactlyOnceWith('resnet-48');
  });

  it('filters by kind and by name', () => {
    show([running, failed, waiting]);
    fireEvent.click(screen.getByRole('radio', { name: /Queued/ }));
    expect(screen.queryByRole('list', { name: 'Jobs of cifar10.ipynb' })).toBeNull();
    expect(screen.getByRole('list', { name: 'Jobs of text.ipynb' })).toBeDefined();

    fireEvent.click(screen.getByRole('radio', { name: /All/ }));
    fireEvent.change(screen.getByRole('searchbox', { name: 'Filter jobs' }), {
      target: { value: 'unet' }
    });
    expect(screen.queryByRole('list', { name: 'Jobs of text.ipynb' })).toBeNull();
  });

  it('shows the queue in its order', () => {
    show([waiting]);
    const queue = screen.getByRole('list', { name: 'Queue' });

    expect(
      within(queue)
        .getAllByRole('listitem')
        .map(i => i.querySelector('b')?.textContent)
    ).toEqual(['eval-50', 'vit-49']);
    expect(within(queue).getAllByRole('listitem')[1].getAttribute('aria-current')).toBe('true');
  });

  it('says of a long line how many more wait, and where all jobs are listed', () => {
    const called = handlers();
    const queue = Array.from({ length: 1250 }, (_, i) => `vit-${i}`);
    const pool = { ...golden.pool(), queue };
    render(
      <Panel
        {...{
          pool,
          rows: [row(running)],
          are_more: true,
          user: 'ana',
          is_admin: false,
          absent: false,
          stale: false
        }}
        handlers={called}
        now_s={NOW_S}
      />
    );

    expect(within(screen.getByRole('list', { name: 'Queue' })).getAllByRole('listitem')).toHaveLength(50);
    expect(screen.getByText('1,200 more wait behind them.')).toBeDefined();
    expect(screen.getByText('jupyter dlaas jobs --limit 1000')).toBeDefined();
  });

  it('has one thing to do when nothing was trained yet, and when there is no server part', () => {
    const first = show([]);
    fireEvent.click(screen.getByRole('button', { name: 'Insert below' }));
    expect(first.insert_example).toHaveBeenCalledTimes(1);
    cleanup();

    const absent = show([], { absent: true });
    fireEvent.click(screen.getByRole('button', { name: 'Check again' }));
    expect(absent.retry_connection).toHaveBeenCalledTimes(1);
  });
});

describe('the preview of a drain', () => {
  const view = golden.drain();
  const preview = (of: IDrainView, is_new = false): void => {
    const owner = (job: string): string | null => (job === 'vae-43' ? 'you' : null);
    render(<DrainPreview view={of} owner={owner} is_new={is_new} />);
  };

  it('says of each job what happens to it', () => {
    preview(view);
    const rows = within(screen.getByRole('table', { name: 'Jobs on gpu-c' })).getAllByRole('row');

    expect(screen.getByText(view.gist)).toBeTruthy();
    expect(rows.slice(1).map(one => [...one.children].map(cell => cell.textContent?.trim()))).toEqual([
      ['vae-43', 'you', 'Shrinks from 2 to 1 learner and continues.'],
      ['nano-46', '–', 'Has no checkpoint yet; it stays until it has one, or ends.']
    ]);
    expect(screen.queryByRole('alert')).toBeNull();
  });

  it('has no table where nobody trains, and tells when the plan that was shown no longer holds', () => {
    preview({ ...view, jobs: [], gist: 'No job runs on gpu-c; no new learners would be placed there.' }, true);

    expect(screen.queryByRole('table')).toBeNull();
    expect(screen.getByRole('alert').textContent).toContain('Nothing was done: the pool changed meanwhile.');
  });
});

describe('the status bar', () => {
  const say = (views: IJobView[], failed: string[] = [], stale = false) =>
    status_text({ views, failed, stale, heard_s: NOW_S - 12, now_s: NOW_S })?.text;

  it('counts what runs and waits', () => {
    expect(say([running, waiting])).toMatch(/^1 running · ends .+ · 1 queued$/);
    expect(say([waiting])).toBe('1 queued');
    const many = Array.from({ length: 250 }, () => ({ ...waiting, waiting: 2500 }));
    expect(say(many)).toBe('250+ queued');
    expect(say([running], ['gru-41'])).toBe('gru-41 failed · 1 running');
    expect(say([running], [], true)).toBe('Training: last heard 12 s ago');
  });

  it('is hidden when there is nothing to say', () => {
    expect(say([golden.job('completed')])).toBeUndefined();
  });
});

describe('Train this notebook', () => {
  const cell = (id: string, ...tags: string[]) => ({
    id,
    source: 'x = 1',
    tags
  });

  it('sends all cells but those tagged notrain, or only those tagged train', () => {
    expect(cells_that_go([cell('a'), cell('b', 'notrain')])).toEqual(['a']);
    expect(cells_that_go([cell('a'), cell('b', 'train')])).toEqual(['b']);
  });

  it('makes a job name of the notebook’s', () => {
    expect(name_of('work/2 My Net (v3).ipynb')).toBe('my-net-v3');
    expect(name_of('123.ipynb')).toBe('train');
  });
});
