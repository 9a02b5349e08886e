/**
 * The words on the wire, as in `jupyter_dlaas/wire/protocol.py`. The golden files in `tests/wire/` keep the two alike.
 *
 * Times are seconds since 1970 (`_s`). Sizes of a job are learners; `gpus_per_learner` turns them into devices.
 */
export const PROTOCOL = 1;

export const MIME_TYPE = 'application/vnd.jupyter-dlaas.job+json';

export type State =
  | 'QUEUED'
  | 'DEPLOYING'
  | 'DOWNLOADING'
  | 'PROCESSING'
  | 'STORING'
  | 'COMPLETED'
  | 'HALTED'
  | 'FAILED'
  | 'CANCELLED';

export type Tone = 'idle' | 'active' | 'good' | 'warn' | 'bad';

export type ActionId = 'scale' | 'halt' | 'resume' | 'cancel' | 'retry';

/** An action that is requested by its name alone. */
export type Verb = Exclude<ActionId, 'scale'> | 'checkpoint';

export interface IAction {
  id: ActionId;
  label: string;
  enabled: boolean;
  why_not: string | null;
  /** Sentence that says what the action loses; ask for confirmation with it. */
  confirm?: string | null;
}

export interface ISize {
  min: number;
  max: number;
  wish: number;
  held: number;
}

export interface IProgress {
  epoch: number;
  epochs: number | null;
  step: number;
  steps: number | null;
  fraction: number | null;
  steps_per_s: number | null;
  samples_per_s: number | null;
  left_s_low: number | null;
  left_s_high: number | null;
  at_s: number;
}

export interface ILearnerView {
  member: number;
  generation: number;
  rank: number;
  node: string;
  devices: string[];
  state: string;
  /** The pod in which it runs; empty: in none. */
  pod?: string;
}

/** Why a process of a job that has its devices does not run yet. */
export interface IWaitingReason {
  /** The learner that waits; null: the guardian, or the whole job. */
  member: number | null;
  code: string;
  object: string;
  what: string;
  advice: string;
  since_s: number | null;
}

export interface IWhere {
  label: string;
  line: number;
  function: string | null;
  first_line: number;
  source: string[];
}

export interface IFailure {
  cause: string;
  code: string;
  what: string;
  advice: string;
  where: IWhere | null;
  raised_by: number[];
  step: number | null;
  traceback: string | null;
}

export interface IResize {
  at_s: number;
  step: number;
  before: number;
  after: number;
  by: string;
  idle_s: number | null;
}

/** A time in which a job did not train; see `Interruption` in membership.py. */
export interface IInterruption {
  at_s: number;
  step: number;
  before: number;
  by: string;
  text: string;
  /** Since when it holds devices again; null: it holds none. */
  held_s: number | null;
  /** Since when it trains again; null: not yet. */
  to_s: number | null;
  after: number | null;
}

export interface ISpeed {
  learners: number;
  samples_per_s: number;
  times: number;
}

export interface INote {
  code: string;
  text: string;
}

export interface IOrigin {
  notebook: string | null;
  cell_id: string | null;
  execution_count: number | null;
  host: string | null;
}

export interface IJobView {
  row: number;
  id: string;
  name: string;
  number: number;
  owner: string;
  state: State;
  state_label: string;
  tone: Tone;
  status_line: string;
  reason: string;
  transition: string | null;
  place: number | null;
  waiting: number | null;
  submitted_s: number;
  started_s: number | null;
  ended_s: number | null;
  unit: string;
  gpus_per_learner: number;
  size: ISize;
  elastic: 'off' | 'manual' | 'auto';
  priority: number;
  queue: string;
  spot?: boolean;
  actions: IAction[];
  learners: ILearnerView[];
  progress: IProgress | null;
  failure: IFailure | null;
  resizes: IResize[];
  outputs: string[];
  results: string[];
  origin: IOrigin;
  notes: INote[];
  directory: string;
  generation: number;
  restarts: number;
  speeds?: ISpeed[];
  speedup?: string;
  /** The step of the newest checkpoint; null: there is none to go on from. */
  checkpoint_step?: number | null;
  interruptions?: IInterruption[];
  /** Time in the queue until the job last got devices. */
  queued_s?: number;
  waiting_for?: IWaitingReason[];
}

export interface IDeviceView {
  id: string;
  index: number;
  kind: string;
  memory_bytes: number;
  job: string | null;
  out_of_service: string | null;
  busy_fraction: number | null;
  memory_used_bytes: number | null;
}

export interface INodeView {
  name: string;
  devices: IDeviceView[];
  cpus: number;
  memory_bytes: number;
  /** Why it takes no new learners: "being drained by ana". */
  cordoned: string | null;
}

/** One queue: its share of the pool, and what it has of it. */
export interface IQueueView {
  name: string;
  weight: number;
  guaranteed: number;
  held: number;
  waiting: number;
}

export interface IPoolView {
  row: number;
  name: string;
  unit: string;
  user: string;
  nodes: INodeView[];
  devices_total: number;
  devices_free: number;
  queue: string[];
  gist: string;
  isolation: string;
  /** Place where jobs run: "this machine", or a cluster with its namespace. */
  runs_on: string;
  order: string;
  preemption: boolean;
  placement: string;
  /** Weight of a spot job's device in its queue's share. */
  spot_price: number;
  /** Time that a spot job has for a checkpoint when its devices are taken back. */
  spot_notice_s: number;
  queues: IQueueView[];
  /** Sentence about the accuracy of start estimates so far; empty if there were none. */
  track_record: string;
  notices: string[];
}

/** A size request: a number of learners, or who chooses it. Absolute, so that it is safe to repeat. */
export type IChange = { learners: number } | { elastic: 'manual' | 'auto' };

/** The effect of a drain on one job: shrink, move, preempt, or stay for now. */
export interface ILeaveView {
  job: string;
  way: 'shrink' | 'move' | 'preempt' | 'stay';
  before: number;
  after: number;
  text: string;
}

/** A node that is (or would be) drained, and what becomes of the jobs there. */
export interface IDrainView {
  node: string;
  is_asked: boolean;
  /** Names this very plan: a drain that is asked with another one's is refused. */
  plan: string;
  gist: string;
  jobs: ILeaveView[];
}

/** A reader's position in a job's streams; valid after a restart of everything. */
export interface ICursor {
  row: number;
  metrics: number;
  logs: { [member: string]: number };
}

/** One point of a curve: step, time, value. */
export type Point = [number, number, number];

/** A number as JSON carries it: NaN and the infinities by name; null is NaN in older files. */
export type WireNumber = number | 'NaN' | 'Infinity' | '-Infinity' | null;

export function asNumber(value: WireNumber): number {
  return value === null ? NaN : Number(value);
}

export function asWireNumber(value: number): WireNumber {
  return Number.isFinite(value) ? value : (String(value) as WireNumber);
}

/** A job in a cell's output: enough to draw the card without a server. */
export interface IBundle {
  schema: number;
  pool: string;
  job: IJobView;
  curves: { [metric: string]: [number, number, WireNumber][] };
  log: string[];
}

/** One line of metrics.jsonl: values, or a rewind that takes back what was logged for later steps. */
export interface IMetricRecord {
  t: number;
  step?: number;
  epoch?: number;
  values?: { [metric: string]: WireNumber };
  source?: string;
  rewind?: number;
}

export type Want = 'view' | 'log' | 'metrics';

export interface IHelloMessage {
  type: 'hello';
  protocol: number;
  pool: string;
  engine: string;
  user: string;
  /** The reader may cordon and drain nodes. Left out by servers that cannot tell. */
  is_admin?: boolean;
  now_s: number;
}

export interface ILogMessage {
  type: 'log';
  job: string;
  member: number;
  from: number;
  to: number;
  text: string;
  at_s: number;
}

export interface ILogSkippedMessage {
  type: 'log_skipped';
  job: string;
  member: number;
  from: number;
  to: number;
}

export interface IMetricsMessage {
  type: 'metrics';
  job: string;
  from: number;
  to: number;
  records: IMetricRecord[];
}

/** A message about one job. */
export type JobMessage =
  | { type: 'job'; job: IJobView }
  | { type: 'progress'; job: string; progress: IProgress }
  | ILogMessage
  | ILogSkippedMessage
  | IMetricsMessage
  | { type: 'gone'; job: string };

export type ServerMessage =
  | IHelloMessage
  | JobMessage
  | { type: 'pool'; pool: IPoolView }
  | { type: 'jobs'; jobs: IJobView[] }
  | { type: 'error'; job: string | null; code: string; message: string }
  | { type: 'heartbeat'; now_s: number };

export type ClientMessage =
  | { type: 'subscribe'; job: string; cursor: ICursor; want: Want[] }
  | { type: 'unsubscribe'; job: string }
  | { type: 'subscribe_pool' }
  | { type: 'unsubscribe_pool' }
  | { type: 'ack'; bytes: number }
  | { type: 'ping' };

/** One event of a job, as text. */
export interface IJobEvent {
  at_s: number;
  text: string;
}

/** A notebook's cell as the server takes it for *Train this notebook*. */
export interface ICellSource {
  source: string;
  tags: string[];
  id: string;
}

export interface INotebookSubmit {
  path: string;
  cells: ICellSource[];
  kernel_name: string;
  spec: { [field: string]: string | number | boolean | null };
}

/** An error, warning or note about a cell. */
export interface ICellMessage {
  code: string;
  cell: number;
  id: string | null;
  line: number;
  text: string;
}

/** A training cell and what it needs. Cells are counted from 1. */
export interface ICheckedCell {
  cell: number;
  id: string | null;
  why: string;
  kept: number;
  kept_cells: number[];
  left_out: number;
  errors: ICellMessage[];
  warnings: ICellMessage[];
  type: string;
}

export interface INotebookChecked {
  cells: ICheckedCell[];
  notes: ICellMessage[];
  error: string | null;
}

/** Return whether a note reports a finding of the training, not of the submission. */
export function isReport(note: INote): boolean {
  return note.code.startsWith('report_');
}

export function isFinal(state: State): boolean {
  return state === 'COMPLETED' || state === 'FAILED' || state === 'CANCELLED';
}

function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

/** The job view in a bundle or message, or null when it is not one. Unknown fields are kept. */
export function asJobView(value: unknown): IJobView | null {
  if (
    !isRecord(value) ||
    typeof value.id !== 'string' ||
    typeof value.state !== 'string' ||
    !isRecord(value.size) ||
    !Array.isArray(value.actions) ||
    !Array.isArray(value.learners) ||
    !Array.isArray(value.resizes) ||
    !Array.isArray(value.notes)
  ) {
    return null;
  }
  return value as unknown as IJobView;
}

/** The bundle in a cell's output, or null when it was made by a version that this page does not understand. */
export function asBundle(value: unknown): IBundle | null {
  if (!isRecord(value) || value.schema !== 1) {
    return null;
  }
  const job = asJobView(value.job);
  if (!job) {
    return null;
  }
  return {
    schema: 1,
    pool: typeof value.pool === 'string' ? value.pool : '',
    job,
    curves: isRecord(value.curves) ? (value.curves as IBundle['curves']) : {},
    log: Array.isArray(value.log) ? value.log.filter(l => typeof l === 'string') : []
  };
}

/** A message of the stream, or null when it is of a kind that this version does not know. */
export function asServerMessage(value: unknown): ServerMessage | null {
  return isRecord(value) && typeof value.type === 'string' ? (value as unknown as ServerMessage) : null;
}
