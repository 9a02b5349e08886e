import * as React from 'react';

import type { IJobState } from '../model/job';
import { isFinal } from '../protocol';
import type { IDeviceView, IJobView, INodeView, IPoolView } from '../protocol';
import { Button, MoreButton, NOT_CONNECTED, Stepper } from './controls';
import * as format from './format';
import { Icon, Swatch, jobColour, numberOf, stateIcon } from './icons';
import { Segments } from './log';

export interface IPanelRow {
  id: string;
  state: IJobState;
}

export interface IPanelHandlers {
  scale(id: string, learners: number): void;
  act(id: string, verb: 'halt' | 'resume' | 'cancel' | 'retry'): void;
  openMenu(id: string, anchor: HTMLElement): void;
  openNodeMenu(node: string, anchor: HTMLElement): void;
  showJob(id: string): void;
  retryConnection(): void;
  /** Left out where there is no notebook. */
  insertExample?(): void;
  trainNotebook?(): void;
  openSettings?(): void;
}

export interface IPanelProps {
  pool: IPoolView | null;
  rows: readonly IPanelRow[];
  /** There are more jobs than rows. */
  areMore?: boolean;
  /** Who reads. */
  user: string;
  /** The reader may cordon and drain nodes. */
  isAdmin: boolean;
  /** No part of ours answers at this server. */
  absent: boolean;
  stale: boolean;
  handlers: IPanelHandlers;
}

/** The cells that "Insert below" adds: `%%train` must be the first line of its cell. */
export const EXAMPLE = [
  `%load_ext jupyter_dlaas`,
  `%%train spirals --gpus 1:4 -o model
import torch, jupyter_dlaas as dlaas

run = dlaas.run()
angle = torch.linspace(0, 9, 2000)
arms = torch.stack([angle * angle.cos(), angle * angle.sin()], 1) / 9
points = torch.cat([arms, -arms]) + 0.02 * torch.randn(4000, 2)
labels = torch.arange(2).repeat_interleave(2000)

model = torch.nn.Sequential(torch.nn.Linear(2, 64), torch.nn.ReLU(),
                            torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
model, optimizer = run.prepare(model, optimizer)
data = torch.utils.data.TensorDataset(points, labels)
for epoch in run.epochs(40):
    for x, y in run.batches(data, 100):
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss)`
];

/** Of a long list so many are drawn at once. */
const LISTED = 50;

const COMMAND = 'jupyter server extension enable dlaas_server';

function Part(props: {
  title: string;
  gist: string;
  children: React.ReactNode;
  flush?: boolean;
}): React.JSX.Element {
  const [open, setOpen] = React.useState(true);
  return (
    <details
      className="jp-dlaas-panel-part"
      open={open}
      onToggle={event => setOpen(event.currentTarget.open)}
    >
      <summary>
        <Icon name="right" />
        <h4>{props.title}</h4>
        <span className="jp-dlaas-dim jp-dlaas-small">{props.gist}</span>
      </summary>
      <div data-flush={props.flush ? '' : undefined}>{open && props.children}</div>
    </details>
  );
}

function Ring({ pool }: { pool: IPoolView }): React.JSX.Element {
  const used = pool.nodes.flatMap(n => n.devices).filter(d => d.job !== null).length;
  const round = 2 * Math.PI * 22;
  const share = pool.devices_total ? used / pool.devices_total : 0;
  return (
    <svg className="jp-dlaas-ring" viewBox="0 0 52 52" role="img" aria-label={pool.gist}>
      <circle cx="26" cy="26" r="22" />
      <circle
        cx="26"
        cy="26"
        r="22"
        strokeDasharray={`${(share * round).toFixed(1)} ${round.toFixed(1)}`}
        transform="rotate(-90 26 26)"
      />
      <text x="26" y="30.5">{`${used}/${pool.devices_total}`}</text>
    </svg>
  );
}

function Tile(props: {
  device: IDeviceView;
  label: string;
  onShow: (id: string) => void;
}): React.JSX.Element {
  const { device, label } = props;
  if (device.job !== null) {
    const { job } = device;
    const name = `${label}: ${job}`;
    return (
      <button
        type="button"
        className="jp-dlaas-tile"
        {...jobColour(numberOf(job))}
        aria-label={name}
        title={name}
        onClick={() => props.onShow(job)}
      >
        <b>{numberOf(job)}</b>
      </button>
    );
  }
  if (device.out_of_service !== null) {
    const name = `${label}: out of service, ${device.out_of_service}`;
    return (
      <span className="jp-dlaas-tile" data-out="" data-tone="warn" role="img" aria-label={name} title={name}>
        <Icon name="warn" marked />
      </span>
    );
  }
  return (
    <span
      className="jp-dlaas-tile"
      data-free=""
      role="img"
      aria-label={`${label}: free`}
      title={`${label}: free`}
    />
  );
}

function busy(node: INodeView): string {
  const known = node.devices.map(d => d.busy_fraction).filter((f): f is number => f !== null);
  return known.length ? format.percent(known.reduce((a, b) => a + b, 0) / known.length) : '';
}

function Pool(props: { pool: IPoolView; isAdmin: boolean; handlers: IPanelHandlers }): React.JSX.Element {
  const { pool, isAdmin, handlers } = props;
  const alone = pool.nodes.length === 1;
  const kinds = [...new Set(pool.nodes.flatMap(n => n.devices.map(d => d.kind)))].filter(Boolean);
  const tiles = (node: INodeView): React.JSX.Element => (
    <div className="jp-dlaas-tiles">
      {node.devices.map(device => (
        <Tile
          key={device.id}
          device={device}
          label={alone ? `${pool.unit} ${device.index}` : `${node.name} · ${device.index}`}
          onShow={handlers.showJob}
        />
      ))}
    </div>
  );
  const menu = (node: INodeView): React.JSX.Element | false =>
    isAdmin && (
      <MoreButton
        label={`Actions for node ${node.name}`}
        onOpen={anchor => handlers.openNodeMenu(node.name, anchor)}
      />
    );
  return (
    <Part title="Pool" gist={pool.name}>
      <div className="jp-dlaas-pool">
        <Ring pool={pool} />
        <div>
          <b>{pool.gist}</b>
          <br />
          <span className="jp-dlaas-small">
            {`${pool.devices_free} free`}
            {kinds.length > 0 && pool.unit === 'GPU' ? ` · ${kinds.join(', ')}` : ''}
          </span>
          {pool.unit !== 'GPU' && (
            <>
              <br />
              <span className="jp-dlaas-small jp-dlaas-dim">No GPU here: training runs on CPU slots.</span>
            </>
          )}
        </div>
        {alone && menu(pool.nodes[0])}
      </div>
      {alone ? (
        tiles(pool.nodes[0])
      ) : (
        <div className="jp-dlaas-nodes">
          {pool.nodes.map(node => (
            <div
              key={node.name}
              className="jp-dlaas-node"
              role="group"
              aria-label={`Node ${node.name}`}
              data-menu={isAdmin ? '' : undefined}
            >
              <span title={node.name}>{node.name}</span>
              {tiles(node)}
              <span>{busy(node)}</span>
              {menu(node)}
            </div>
          ))}
        </div>
      )}
      <div className="jp-dlaas-cordoned" role="status">
        {pool.nodes
          .filter(node => node.cordoned)
          .map(node => (
            <p
              key={node.name}
              className="jp-dlaas-small jp-dlaas-dim"
            >{`${node.name} is ${node.cordoned}.`}</p>
          ))}
      </div>
      {pool.queues?.length > 1 && (
        <p className="jp-dlaas-small jp-dlaas-dim">
          {pool.queues
            .map(({ name, held, guaranteed }) => `${name} ${held}${guaranteed ? ` of ${guaranteed}` : ''}`)
            .join(' · ')}
        </p>
      )}
      {(pool.notices ?? []).map(notice => (
        <p key={notice} className="jp-dlaas-small" role="status">
          {notice}
        </p>
      ))}
      {pool.track_record && <p className="jp-dlaas-small jp-dlaas-dim">{pool.track_record}</p>}
    </Part>
  );
}

function rowText(view: IJobView, state: IJobState, nowS: number): string {
  const { progress } = state;
  if (view.state === 'PROCESSING' && progress && view.transition === null) {
    const parts = [
      progress.fraction === null ? `step ${format.count(progress.step)}` : format.percent(progress.fraction)
    ];
    if (progress.left_s_low !== null && progress.left_s_high !== null) {
      parts.push(
        `ends ${format.clockRange(progress.at_s + progress.left_s_low, progress.at_s + progress.left_s_high)}`
      );
    }
    return parts.join(' · ');
  }
  const when = view.ended_s === null ? '' : format.day(view.ended_s, nowS);
  return [`${view.state_label}${when ? ` ${when}` : ''}`, view.status_line].filter(Boolean).join(' · ');
}

function JobRow(props: {
  row: IPanelRow;
  stale: boolean;
  nowS: number;
  handlers: IPanelHandlers;
}): React.JSX.Element {
  const { row, stale, handlers } = props;
  const { view, progress } = row.state;
  const scale = view.actions.find(a => a.id === 'scale');
  const resume = view.actions.find(a => a.id === 'resume' && a.enabled);
  const retry = view.state === 'FAILED' ? view.actions.find(a => a.id === 'retry' && a.enabled) : undefined;
  const percent = Math.round((progress?.fraction ?? 0) * 100);
  return (
    <li className="jp-dlaas-jobrow" data-status={view.state.toLowerCase()} data-tone={view.tone}>
      <Icon name={stateIcon(view)} marked />
      <div>
        <div className="jp-dlaas-jobname">
          <span className="jp-dlaas-hidden">{`${view.state_label}:`}</span>
          <Swatch number={view.number} />
          <b>
            <button type="button" className="jp-dlaas-plainlink" onClick={() => handlers.showJob(view.id)}>
              {view.id}
            </button>
          </b>
        </div>
        <p title={view.reason || undefined}>{rowText(view, row.state, props.nowS)}</p>
        {view.state === 'PROCESSING' && progress?.fraction !== undefined && progress.fraction !== null && (
          <div
            className="jp-dlaas-bar"
            role="progressbar"
            aria-label={`Progress of ${view.id}`}
            aria-valuemin={0}
            aria-valuemax={100}
            aria-valuenow={percent}
          >
            <i style={{ width: `${percent}%` }} />
          </div>
        )}
      </div>
      <div className="jp-dlaas-controls">
        {scale?.enabled && !isFinal(view.state) && !resume && (
          <Stepper
            state={row.state}
            small
            stale={stale}
            onScale={learners => handlers.scale(view.id, learners)}
          />
        )}
        {resume && (
          <Button
            label="Resume"
            name={`Resume ${view.id}`}
            whyNot={stale ? NOT_CONNECTED : null}
            onClick={() => handlers.act(view.id, 'resume')}
          />
        )}
        {retry && (
          <Button
            label="Retry"
            name={`Retry ${view.id}`}
            whyNot={stale ? NOT_CONNECTED : null}
            onClick={() => handlers.act(view.id, 'retry')}
          />
        )}
      </div>
      <MoreButton
        label={`More actions for ${view.id}`}
        onOpen={anchor => handlers.openMenu(view.id, anchor)}
      />
    </li>
  );
}

type Show = 'all' | 'running' | 'queued' | 'ended';

const KINDS: { [kind in Show]: (view: IJobView) => boolean } = {
  all: () => true,
  running: view => !isFinal(view.state) && view.state !== 'QUEUED' && view.state !== 'HALTED',
  queued: view => view.state === 'QUEUED',
  ended: view => isFinal(view.state) || view.state === 'HALTED'
};

function notebookName(view: IJobView): string {
  return view.origin.notebook?.split('/').pop() ?? 'Other jobs';
}

function MyJobs(props: IPanelProps & { nowS: number }): React.JSX.Element {
  const [filter, setFilter] = React.useState('');
  const [show, setShow] = React.useState<Show>('all');
  const wanted = filter.trim().toLowerCase();
  const own = props.rows.filter(r => props.user === '' || r.state.view.owner === props.user);
  const groups = new Map<string, IPanelRow[]>();
  for (const row of own) {
    const { view } = row.state;
    const name = notebookName(view);
    if (
      KINDS[show](view) &&
      (!wanted || view.id.toLowerCase().includes(wanted) || name.toLowerCase().includes(wanted))
    ) {
      const rows = groups.get(name);
      if (rows) {
        rows.push(row);
      } else {
        groups.set(name, [row]);
      }
    }
  }
  const number = (kind: Show): number => own.filter(r => KINDS[kind](r.state.view)).length;
  return (
    <Part title="My jobs" gist={format.count(own.length)} flush>
      <div className="jp-dlaas-filter">
        <input
          className="jp-dlaas-input"
          type="search"
          aria-label="Filter jobs"
          placeholder="Filter by name or notebook"
          value={filter}
          onChange={event => setFilter(event.target.value)}
        />
        <Segments
          label="Show"
          value={show}
          onChange={id => setShow(id as Show)}
          values={[
            { id: 'all', text: 'All', number: own.length },
            { id: 'running', text: 'Running', number: number('running') },
            { id: 'queued', text: 'Queued', number: number('queued') },
            { id: 'ended', text: 'Ended', number: number('ended') }
          ]}
        />
      </div>
      {[...groups].map(([name, rows]) => (
        <React.Fragment key={name}>
          <div className="jp-dlaas-group">
            <Icon name="file" />
            <span>{name}</span>
            <span className="jp-dlaas-dim">{rows.length}</span>
          </div>
          <ul className="jp-dlaas-rows" aria-label={`Jobs of ${name}`}>
            {rows.map(row => (
              <JobRow
                key={row.id}
                row={row}
                stale={props.stale}
                nowS={props.nowS}
                handlers={props.handlers}
              />
            ))}
          </ul>
        </React.Fragment>
      ))}
      {groups.size === 0 && <p className="jp-dlaas-none">No job matches.</p>}
      {props.areMore && (
        <p className="jp-dlaas-none">
          Older jobs, and those far back in line, are not listed here:{' '}
          <code>jupyter dlaas jobs --limit 1000</code>
        </p>
      )}
    </Part>
  );
}

function Queue(props: IPanelProps): React.JSX.Element | null {
  const { pool } = props;
  if (!pool || pool.queue.length === 0) {
    return null;
  }
  const known = new Map(props.rows.map(r => [r.id, r.state.view]));
  return (
    <Part title="Queue" gist={format.count(pool.queue.length)} flush>
      <ol className="jp-dlaas-rows" aria-label="Queue">
        {pool.queue.slice(0, LISTED).map((id, i) => {
          const view = known.get(id);
          const own = view !== undefined && view.owner === props.user;
          return (
            <li key={id} className="jp-dlaas-queuerow" aria-current={own ? 'true' : undefined}>
              <span>{i + 1}</span>
              <div>
                <b>{id}</b>
                {view ? ` · ${own ? 'you' : view.owner}` : ''}
                {view?.reason && <p className="jp-dlaas-dim">{view.reason}</p>}
              </div>
              <span>
                {view
                  ? `${view.size.wish * Math.max(1, view.gpus_per_learner)} ${format.units(view.unit, view.size.wish)}`
                  : ''}
              </span>
            </li>
          );
        })}
      </ol>
      {pool.queue.length > LISTED && (
        <p className="jp-dlaas-none">{format.count(pool.queue.length - LISTED)} more wait behind them.</p>
      )}
    </Part>
  );
}

function Absent({ handlers }: { handlers: IPanelHandlers }): React.JSX.Element {
  return (
    <div className="jp-dlaas-empty">
      <h4>The server part is not enabled</h4>
      <p>
        This page has the training panel, but the Jupyter server at this address does not answer for it.
        Enable it once, then restart Jupyter:
      </p>
      <pre className="jp-dlaas-snippet" tabIndex={0} aria-label="Command">
        {COMMAND}
      </pre>
      <div className="jp-dlaas-actions">
        <Button icon="retry" label="Check again" primary onClick={handlers.retryConnection} />
        <Button
          icon="copy"
          label="Copy command"
          onClick={() => void navigator.clipboard.writeText(COMMAND)}
        />
      </div>
    </div>
  );
}

function First({ handlers }: { handlers: IPanelHandlers }): React.JSX.Element {
  return (
    <div className="jp-dlaas-empty">
      <h4>Nothing trained yet</h4>
      <p>
        Put one line on top of a cell that trains. The cell runs in the background, tells when it starts, and
        can grow and shrink while it runs.
      </p>
      <pre className="jp-dlaas-snippet" tabIndex={0} aria-label="Example">
        {EXAMPLE.join('\n\n')}
      </pre>
      <div className="jp-dlaas-actions">
        {handlers.insertExample && (
          <Button icon="add" label="Insert below" primary onClick={handlers.insertExample} />
        )}
        {handlers.trainNotebook && <Button label="Train this notebook…" onClick={handlers.trainNotebook} />}
      </div>
    </div>
  );
}

function Tool(props: { icon: 'add' | 'gear'; name: string; onClick: () => void }): React.JSX.Element {
  return (
    <button
      type="button"
      className="jp-dlaas-button"
      data-bare=""
      aria-label={props.name}
      title={props.name}
      onClick={props.onClick}
    >
      <Icon name={props.icon} />
    </button>
  );
}

/** The side panel: the pool, my jobs, the queue. */
export function Panel(props: IPanelProps & { nowS: number }): React.JSX.Element {
  const { pool, handlers } = props;
  return (
    <section className="jp-dlaas jp-dlaas-panel" role="region" aria-label="Training">
      <header>
        <h3>Training</h3>
        {handlers.trainNotebook && !props.absent && (
          <Tool icon="add" name="Train this notebook" onClick={handlers.trainNotebook} />
        )}
        {handlers.openSettings && (
          <Tool icon="gear" name="Training settings" onClick={handlers.openSettings} />
        )}
      </header>
      {props.absent ? (
        <Absent handlers={handlers} />
      ) : (
        <>
          {props.stale && (
            <div className="jp-dlaas-banner" data-tone="idle">
              <Icon name="plug" />
              <div>Not connected. What stands here may be out of date.</div>
              <Button label="Try now" onClick={handlers.retryConnection} />
            </div>
          )}
          {pool && <Pool pool={pool} isAdmin={props.isAdmin && !props.stale} handlers={handlers} />}
          {props.rows.length > 0 ? <MyJobs {...props} /> : pool && <First handlers={handlers} />}
          <Queue {...props} />
        </>
      )}
    </section>
  );
}
