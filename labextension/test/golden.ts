import { readFileSync } from 'node:fs';
import { join } from 'node:path';

import type { IBundle, IDrainView, IJobView, IPoolView, ServerMessage } from '../src/protocol';

const FOLDER = join(__dirname, '..', '..', 'tests', 'wire');

function read(name: string): unknown {
  return JSON.parse(readFileSync(join(FOLDER, `${name}.json`), 'utf-8'));
}

export const job = (state: string): IJobView => read(`job_${state}`) as IJobView;
export const pool = (): IPoolView => read('pool') as IPoolView;
export const drain = (): IDrainView => read('drain') as IDrainView;
export const bundle = (): IBundle => read('bundle') as IBundle;
export const message = (name: string): ServerMessage => read(`message_${name}`) as ServerMessage;
export const raw = read;
