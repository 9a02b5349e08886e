import { screen } from '@testing-library/react';
import * as React from 'react';
import { vi } from 'vitest';

import { type IJobState, stateOfCopy } from '../src/model/job';
import type { IJobView } from '../src/protocol';
import { type IJobCardProps, JobCard } from '../src/views/card/JobCard';
import type { ICardHandlers } from '../src/views/handlers';
import * as golden from './golden';
import { render } from './render';

export const NOW_S = 1_773_497_801;

export function cardHandlers() {
  return {
    scale: vi.fn<ICardHandlers['scale']>(),
    setElastic: vi.fn<ICardHandlers['setElastic']>(),
    act: vi.fn<ICardHandlers['act']>(),
    retryConnection: vi.fn(),
    allow: vi.fn(),
    copy: vi.fn<NonNullable<ICardHandlers['copy']>>(),
    copyReport: vi.fn(),
    goToCell: vi.fn(),
    openMenu: vi.fn()
  };
}

export function stateOf(view: IJobView, more: Partial<IJobState> = {}): IJobState {
  const connection = { kind: 'live' as const, receivedS: NOW_S, retryS: null, stale: false };
  return { ...stateOfCopy({ ...golden.bundle(), job: view }, connection), live: true, ...more };
}

/** Draw a card; returns it with the handlers that it calls. */
export function showCard(state: IJobState, more: Partial<IJobCardProps> = {}) {
  const called = cardHandlers();
  render(<JobCard state={state} handlers={called} nowS={NOW_S} allowed {...more} />);
  return { card: screen.getByRole('region', { name: `Job ${state.view.id}` }), called };
}
