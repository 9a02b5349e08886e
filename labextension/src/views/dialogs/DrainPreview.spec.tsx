import { cleanup, screen, within } from '@testing-library/react';
import * as React from 'react';
import { afterEach, describe, expect, it } from 'vitest';

import * as golden from '../../../test/golden';
import { render } from '../../../test/render';
import type { IDrainView } from '../../protocol';
import { DrainPreview } from './DrainPreview';

afterEach(cleanup);

describe('the preview of a drain', () => {
  const view = golden.drain();
  const preview = (of: IDrainView, isNew = false): void => {
    const owner = (job: string): string | null => (job === 'vae-43' ? 'you' : null);
    render(<DrainPreview view={of} owner={owner} isNew={isNew} />);
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
    preview(
      { ...view, jobs: [], gist: 'No job runs on gpu-c; no new learners would be placed there.' },
      true
    );

    expect(screen.queryByRole('table')).toBeNull();
    expect(screen.getByRole('alert').textContent).toContain(
      'Nothing was done: the pool changed in the meantime.'
    );
  });
});
