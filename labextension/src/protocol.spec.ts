import { readdirSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';

import * as golden from '../test/golden';
import { asBundle, asJobView, asServerMessage, isFinal } from './protocol';

const names = readdirSync(join(__dirname, '..', '..', 'tests', 'wire'))
  .filter(n => n.endsWith('.json'))
  .map(n => n.slice(0, -5));

describe('the golden wire messages', () => {
  it.each(names.filter(n => n.startsWith('job_')))('%s is a job view', name => {
    expect(asJobView(golden.raw(name))).not.toBeNull();
  });

  it.each(names.filter(n => n.startsWith('message_')))('%s is a message', name => {
    expect(asServerMessage(golden.raw(name))).not.toBeNull();
  });

  it('hold a bundle', () => {
    expect(asBundle(golden.raw('bundle'))?.job.id).toBe('resnet-48');
  });

  it('end in the states that are final', () => {
    const final = ['completed', 'failed', 'cancelled', 'halted', 'processing'].filter(s =>
      isFinal(golden.job(s).state)
    );

    expect(final).toEqual(['completed', 'failed', 'cancelled']);
  });
});

describe('a bundle of another version', () => {
  it.each([null, 3, {}, { schema: 2, job: golden.job('queued') }, { schema: 1, job: { id: 3 } }])(
    '%# is not read',
    value => {
      expect(asBundle(value)).toBeNull();
    }
  );
});
