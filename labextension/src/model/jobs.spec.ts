import { describe, expect, it } from 'vitest';

import * as golden from '../../test/golden';
import { firstOf } from './jobs';

const running = golden.job('processing');
const failed = golden.job('failed');
const waiting = {
  ...golden.job('queued'),
  id: 'vit-49',
  number: 49,
  origin: { ...running.origin, notebook: 'text.ipynb' }
};

describe('a list of more jobs than are shown', () => {
  it('has those under way, then the first in line, then the newest ended', () => {
    const queued = [5, 4, 3].map(place => ({ view: { ...waiting, id: `vit-${50 + place}`, place } }));
    const ended = [9, 8].map(n => ({ view: { ...failed, id: `old-${n}` } }));
    const all = [...queued, { view: running }, ...ended];
    const ids = (limit: number): string[] => firstOf(all, limit).map(job => job.view.id);

    expect(ids(3)).toEqual([running.id, 'vit-53', 'vit-54']);
    expect(ids(5)).toEqual([running.id, 'vit-53', 'vit-54', 'vit-55', 'old-9']);
    expect(ids(6)).toEqual(all.map(job => job.view.id));
  });
});
