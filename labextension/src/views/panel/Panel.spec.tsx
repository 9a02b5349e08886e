import { cleanup, fireEvent, screen, within } from '@testing-library/react';
import * as React from 'react';
import { afterEach, describe, expect, it, vi } from 'vitest';

import * as golden from '../../../test/golden';
import { language } from '../../../test/language';
import { render } from '../../../test/render';
import { stateOfCopy } from '../../model/job';
import type { IJobView } from '../../protocol';
import { Panel } from './Panel';
import type { IPanelHandlers, IPanelRow } from './props';
import { statusText } from './StatusItem';

const NOW_S = 1_773_497_801;
const CONNECTION = {
  kind: 'live' as const,
  receivedS: NOW_S,
  retryS: null,
  stale: false
};

const row = (view: IJobView): IPanelRow => ({
  id: view.id,
  state: stateOfCopy({ ...golden.bundle(), job: view }, CONNECTION)
});

function handlers() {
  return {
    scale: vi.fn<IPanelHandlers['scale']>(),
    act: vi.fn<IPanelHandlers['act']>(),
    openMenu: vi.fn(),
    openNodeMenu: vi.fn<IPanelHandlers['openNodeMenu']>(),
    showJob: vi.fn(),
    retryConnection: vi.fn(),
    insertExample: vi.fn(),
    trainNotebook: vi.fn()
  };
}

function show(views: IJobView[], more: { absent?: boolean; isAdmin?: boolean } = {}) {
  const called = handlers();
  render(
    <Panel
      pool={more.absent ? null : golden.pool()}
      rows={views.map(row)}
      user="ana"
      isAdmin={more.isAdmin ?? false}
      absent={more.absent ?? false}
      stale={false}
      handlers={called}
      nowS={NOW_S}
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

  it("shows the pool's name, and where its jobs run", () => {
    show([running]);
    const { name, runs_on: place } = golden.pool();

    expect(screen.getByRole('heading', { name: 'Pool' }).parentElement?.textContent).toContain(name);
    expect(screen.getByText(`Jobs run on ${place}.`)).toBeTruthy();
  });

  it('says which node is being drained, what queues have, and how good start estimates were', () => {
    show([running]);
    expect(screen.getByText('gpu-a is being drained by ana.')).toBeTruthy();
    expect(screen.getByText('default 2 · research 6 of 6')).toBeTruthy();
    expect(screen.getByText(/^Of the last 50 start estimates, 41 were correct/)).toBeTruthy();
  });

  it('has a menu at each node for those who run the pool, and for nobody else', () => {
    const called = show([running], { isAdmin: true });
    const node = screen.getByRole('group', { name: 'Node gpu-c' });
    fireEvent.click(within(node).getByRole('button', { name: 'Actions for node gpu-c' }));

    expect(called.openNodeMenu).toHaveBeenCalledExactlyOnceWith('gpu-c', expect.anything());
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
    expect(called.showJob).toHaveBeenCalledExactlyOnceWith('resnet-48');
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
          hasMore: true,
          user: 'ana',
          isAdmin: false,
          absent: false,
          stale: false
        }}
        handlers={called}
        nowS={NOW_S}
      />
    );

    expect(within(screen.getByRole('list', { name: 'Queue' })).getAllByRole('listitem')).toHaveLength(50);
    expect(screen.getByText('1,200 more jobs are queued.')).toBeDefined();
    expect(screen.getByText('jupyter dlaas jobs --limit 1000')).toBeDefined();
  });

  it('has one thing to do when nothing was trained yet, and when there is no server part', () => {
    const first = show([]);
    fireEvent.click(screen.getByRole('button', { name: 'Insert below' }));
    expect(first.insertExample).toHaveBeenCalledTimes(1);
    cleanup();

    const absent = show([], { absent: true });
    fireEvent.click(screen.getByRole('button', { name: 'Check again' }));
    expect(absent.retryConnection).toHaveBeenCalledTimes(1);
  });
});

describe('the status bar', () => {
  const say = (views: IJobView[], failed: string[] = [], stale = false) =>
    statusText(language, { views, failed, stale, receivedS: NOW_S - 12, nowS: NOW_S })?.parts.join(' · ');

  it('counts what runs and waits', () => {
    expect(say([running, waiting])).toMatch(/^1 running · ends .+ · 1 queued$/);
    expect(say([waiting])).toBe('1 queued');
    const many = Array.from({ length: 250 }, () => ({ ...waiting, waiting: 2500 }));
    expect(say(many)).toBe('250+ queued');
    expect(say([running], ['gru-41'])).toBe('gru-41 failed · 1 running');
    expect(say([running], [], true)).toBe('Training: last update 12 s ago');
  });

  it('is hidden when there is nothing to say', () => {
    expect(say([golden.job('completed')])).toBeUndefined();
  });
});
