import * as React from 'react';

import type { IDeviceView, INodeView, IPoolView } from '../../protocol';
import { Icon, jobColour, numberOf } from '../controls/Icon';
import { MoreButton } from '../controls/MoreButton';
import * as format from '../format';
import { Part } from './Part';
import type { IPanelHandlers } from './props';

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

export function Pool(props: {
  pool: IPoolView;
  isAdmin: boolean;
  handlers: IPanelHandlers;
}): React.JSX.Element {
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
