import { cleanup, screen } from '@testing-library/react';
import * as React from 'react';
import { afterEach, describe, expect, it } from 'vitest';

import { stateOf } from '../../../test/card';
import * as golden from '../../../test/golden';
import { render } from '../../../test/render';
import type { IInterruption } from '../../protocol';
import { Facts } from './Facts';

afterEach(cleanup);

const HALT: IInterruption = {
  at_s: 40,
  step: 5,
  before: 1,
  by: 'halted',
  text: '',
  held_s: 58,
  to_s: 60,
  after: 1
};

describe('what a job took', () => {
  const times = { submitted_s: 10, started_s: 22, ended_s: 100, queued_s: 9 };

  it.each([
    [[], 'queued 9 s, deployed in 3 s, ran 1 min 18 s'],
    [[HALT], 'started after 12 s, interrupted for 20 s, ran 58 s']
  ])('adds up with the interruptions %j', (interruptions, detail) => {
    render(<Facts state={stateOf({ ...golden.job('completed'), ...times, interruptions })} />);

    expect(screen.getByText('1 min 30 s')).toBeTruthy();
    expect(screen.getByText(detail)).toBeTruthy();
  });
});
