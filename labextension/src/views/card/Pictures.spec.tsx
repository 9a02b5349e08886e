import { cleanup, fireEvent, screen, waitFor } from '@testing-library/react';
import * as React from 'react';
import { afterEach, describe, expect, it, vi } from 'vitest';

import * as golden from '../../../test/golden';
import { trans } from '../../../test/language';
import { render } from '../../../test/render';
import { Client, type IServer } from '../../api/client';
import { type IJobState, stateOfCopy } from '../../model/job';
import type { ICardHandlers, IPicture } from '../handlers';
import { Pictures } from './Pictures';

afterEach(cleanup);

function stateOf(name: string, lines: string[]): IJobState {
  const connection = { kind: 'live' as const, receivedS: 0, retryS: null, stale: false };
  return stateOfCopy({ ...golden.bundle(), job: golden.job(name), log: lines }, connection);
}

function withPictures(...names: string[]) {
  const load = vi.fn(() => Promise.resolve(new Blob(['x'], { type: 'image/png' })));
  const pictures = vi.fn(() => Promise.resolve(names.map((name): IPicture => ({ name, load }))));
  return { load, pictures, handlers: { pictures } as unknown as ICardHandlers };
}

describe('the pictures of a job', () => {
  it('are shown when their part is opened, and fetched then', async () => {
    URL.createObjectURL = () => 'blob:one';
    URL.revokeObjectURL = () => undefined;
    const { load, pictures, handlers } = withPictures('figure-001.png', 'figure-002.png');
    render(
      <Pictures state={stateOf('processing', ['[figure kept as figure-002.png]'])} handlers={handlers} />
    );

    const title = await screen.findByText('Pictures');
    expect(screen.getByText('2 pictures · figure-002.png')).toBeTruthy();
    expect(load).not.toHaveBeenCalled();
    fireEvent.click(title);
    await waitFor(() =>
      expect(screen.getAllByRole('img').map(i => i.getAttribute('alt'))).toEqual([
        'figure-001.png',
        'figure-002.png'
      ])
    );
    expect(pictures).toHaveBeenCalledTimes(1);
  });

  it('are requested only if the log names one, or the job has ended', () => {
    const running = withPictures('figure-001.png');
    render(<Pictures state={stateOf('processing', ['loss: 0.5'])} handlers={running.handlers} />);
    expect(running.pictures).not.toHaveBeenCalled();

    const ended = withPictures();
    render(<Pictures state={stateOf('completed', [])} handlers={ended.handlers} />);
    expect(ended.pictures).toHaveBeenCalledTimes(1);
  });

  it('are those artifacts that a browser can draw', async () => {
    const asked: string[] = [];
    const server: IServer = {
      url: '/dlaas/',
      request: (url: string) => {
        asked.push(url);
        const artifacts = ['output/figure-001.png', 'output/model.pt', 'output/a b.svg', 'checkpoints/x.png'];
        return Promise.resolve(
          new Response(JSON.stringify({ artifacts: artifacts.map(path => ({ path, bytes: 1 })) }))
        );
      },
      socket: () => {
        throw new Error('no socket');
      }
    };

    const found = await new Client(server, trans).pictures('a-1');
    expect(found.map(picture => picture.name)).toEqual(['figure-001.png', 'a b.svg']);
    const blob = await found[1].load();
    expect(blob?.type).toBe('image/svg+xml');
    expect(asked).toEqual(['/dlaas/jobs/a-1/artifacts', '/dlaas/jobs/a-1/artifacts/output/a%20b.svg']);
  });
});
