import * as React from 'react';

import { type ILanguage, useLanguage } from '../../language';
import type { INodeView, IPoolView, IQueueView } from '../../protocol';
import { MoreButton } from '../controls/MoreButton';
import { DeviceTile } from './DeviceTile';
import { Part } from './Part';
import type { IPanelHandlers } from './props';

const RING_RADIUS = 22;

/** A ring that shows the share of devices in use. */
function UsageRing({ pool }: { pool: IPoolView }): React.JSX.Element {
  const used = pool.nodes.flatMap(node => node.devices).filter(device => device.job !== null).length;
  const circumference = 2 * Math.PI * RING_RADIUS;
  const share = pool.devices_total ? used / pool.devices_total : 0;
  return (
    <svg className="jp-dlaas-ring" viewBox="0 0 52 52" role="img" aria-label={pool.gist}>
      <circle cx="26" cy="26" r={RING_RADIUS} />
      <circle
        cx="26"
        cy="26"
        r={RING_RADIUS}
        strokeDasharray={`${(share * circumference).toFixed(1)} ${circumference.toFixed(1)}`}
        transform="rotate(-90 26 26)"
      />
      <text x="26" y="30.5">{`${used}/${pool.devices_total}`}</text>
    </svg>
  );
}

/** Return the mean utilisation of a node's devices; empty if it is not known. */
function utilisation({ format }: ILanguage, node: INodeView): string {
  const known = node.devices.map(device => device.busy_fraction).filter(fraction => fraction !== null);
  return known.length ? format.percent(known.reduce((a, b) => a + b, 0) / known.length) : '';
}

function queueText({ trans }: ILanguage, queue: IQueueView): string {
  return queue.guaranteed
    ? trans.__('%1 %2 of %3', queue.name, queue.held, queue.guaranteed)
    : `${queue.name} ${queue.held}`;
}

interface INodeProps {
  pool: IPoolView;
  node: INodeView;
  /** The only node of the pool, whose name says nothing. */
  isOnly: boolean;
  isAdmin: boolean;
  handlers: IPanelHandlers;
}

function Tiles({ pool, node, isOnly, handlers }: INodeProps): React.JSX.Element {
  return (
    <div className="jp-dlaas-tiles">
      {node.devices.map(device => (
        <DeviceTile
          key={device.id}
          device={device}
          label={isOnly ? `${pool.unit} ${device.index}` : `${node.name} · ${device.index}`}
          onShow={handlers.showJob}
        />
      ))}
    </div>
  );
}

function NodeMenu({ node, isAdmin, handlers }: INodeProps): React.JSX.Element | null {
  const { trans } = useLanguage();
  return isAdmin ? (
    <MoreButton
      label={trans.__('Actions for node %1', node.name)}
      onOpen={anchor => handlers.openNodeMenu(node.name, anchor)}
    />
  ) : null;
}

function NodeRow(props: INodeProps): React.JSX.Element {
  const language = useLanguage();
  const { node } = props;
  return (
    <div
      className="jp-dlaas-node"
      role="group"
      aria-label={language.trans.__('Node %1', node.name)}
      data-menu={props.isAdmin ? '' : undefined}
    >
      <span title={node.name}>
        <bdi>{node.name}</bdi>
      </span>
      <Tiles {...props} />
      <span>{utilisation(language, node)}</span>
      <NodeMenu {...props} />
    </div>
  );
}

/** The devices of the pool by node, with the jobs that hold them. */
export function Pool(props: {
  pool: IPoolView;
  isAdmin: boolean;
  handlers: IPanelHandlers;
}): React.JSX.Element {
  const language = useLanguage();
  const { trans, format } = language;
  const { pool } = props;
  const isOnly = pool.nodes.length === 1;
  const hasGpus = pool.unit === 'GPU';
  const kinds = [...new Set(pool.nodes.flatMap(node => node.devices.map(device => device.kind)))];
  const kindNames = hasGpus ? kinds.filter(Boolean).join(', ') : '';
  const nodeProps = pool.nodes.map(node => ({ ...props, node, isOnly }));
  const free = trans.__('%1 free', format.count(pool.devices_free));
  return (
    <Part title={trans.__('Pool')} gist={pool.name}>
      <div className="jp-dlaas-pool">
        <UsageRing pool={pool} />
        <div>
          <b>{pool.gist}</b>
          <br />
          <span className="jp-dlaas-small">{[free, kindNames].filter(Boolean).join(' · ')}</span>
          {pool.runs_on && (
            <>
              <br />
              <span className="jp-dlaas-small jp-dlaas-dim">{trans.__('Jobs run on %1.', pool.runs_on)}</span>
            </>
          )}
          {!hasGpus && (
            <>
              <br />
              <span className="jp-dlaas-small jp-dlaas-dim">
                {trans.__('No GPU here: jobs train on CPU slots.')}
              </span>
            </>
          )}
        </div>
        {isOnly && <NodeMenu {...nodeProps[0]} />}
      </div>
      {isOnly ? (
        <Tiles {...nodeProps[0]} />
      ) : (
        <div className="jp-dlaas-nodes">
          {nodeProps.map(nodeProp => (
            <NodeRow key={nodeProp.node.name} {...nodeProp} />
          ))}
        </div>
      )}
      <div className="jp-dlaas-cordoned" role="status">
        {pool.nodes
          .filter(node => node.cordoned)
          .map(node => (
            <p key={node.name} className="jp-dlaas-small jp-dlaas-dim">
              {trans.__('%1 is %2.', node.name, node.cordoned)}
            </p>
          ))}
      </div>
      {pool.queues?.length > 1 && (
        <p className="jp-dlaas-small jp-dlaas-dim">
          {pool.queues.map(queue => queueText(language, queue)).join(' · ')}
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
