import * as React from 'react';
import uPlot from 'uplot';

import type { IChart } from './chart';
import type { ITrack } from './tracks';

interface IPlotProps {
  track: ITrack;
  /** Draw the running mean beside the values. */
  smooth: boolean;
  chart: IChart;
  sync: string;
  onPoint: (value: number | null) => void;
}

/** Return a colour of the theme for a canvas; read at each drawing, so that a change of theme shows. */
function colour(element: Element, variable: string): string {
  return getComputedStyle(element).getPropertyValue(variable).trim() || 'gray';
}

function faded(element: Element, variable: string, percent: number): string {
  return `color-mix(in srgb, ${colour(element, variable)} ${percent}%, transparent)`;
}

function dashes(u: uPlot, marks: IChart['marks'], stroke: string): void {
  const { ctx, bbox } = u;
  ctx.save();
  ctx.strokeStyle = stroke;
  ctx.lineWidth = uPlot.pxRatio;
  ctx.setLineDash([2 * uPlot.pxRatio, 3 * uPlot.pxRatio]);
  ctx.beginPath();
  for (const mark of marks) {
    const x = Math.round(bbox.left + mark.x * bbox.width) + 0.5;
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
  }
  ctx.stroke();
  ctx.restore();
}

function middleLine(u: uPlot, stroke: string): void {
  const { ctx, bbox } = u;
  const y = Math.round(bbox.top + bbox.height / 2) + 0.5;
  ctx.save();
  ctx.strokeStyle = stroke;
  ctx.lineWidth = uPlot.pxRatio;
  ctx.beginPath();
  ctx.moveTo(bbox.left, y);
  ctx.lineTo(bbox.left + bbox.width, y);
  ctx.stroke();
  ctx.restore();
}

/** Draw a band where values are NaN or infinite, with the value and the step at which it began. */
function bands(u: uPlot, track: ITrack, stroke: string, fill: string): void {
  const { ctx, bbox } = u;
  ctx.save();
  ctx.font = `${11 * uPlot.pxRatio}px sans-serif`;
  ctx.textBaseline = 'top';
  for (const gap of track.gaps) {
    const left = u.valToPos(gap.from, 'x', true);
    const width = Math.max(3 * uPlot.pxRatio, u.valToPos(gap.to, 'x', true) - left);
    ctx.fillStyle = fill;
    ctx.fillRect(left, bbox.top, width, bbox.height);
    ctx.fillStyle = stroke;
    ctx.fillRect(left, bbox.top, uPlot.pxRatio, bbox.height);
    const wide = ctx.measureText(gap.text).width + 6 * uPlot.pxRatio;
    const isRight = left + wide <= bbox.left + bbox.width;
    ctx.textAlign = isRight ? 'left' : 'right';
    ctx.fillText(gap.text, left + (isRight ? 4 : -3) * uPlot.pxRatio, bbox.top + 2 * uPlot.pxRatio);
  }
  ctx.restore();
}

function options(box: HTMLElement, latest: React.RefObject<IPlotProps>, size: DOMRect): uPlot.Options {
  const props = (): IPlotProps => latest.current as IPlotProps;
  const { track } = props();
  const line = (): string => colour(box, '--jp-brand-color1');
  return {
    width: Math.max(20, Math.floor(size.width)),
    height: Math.max(20, Math.floor(size.height)),
    padding: [5, 0, 2, 0],
    legend: { show: false },
    select: { show: false, left: 0, top: 0, width: 0, height: 0 },
    cursor: {
      y: false,
      drag: { x: false, y: false },
      sync: { key: props().sync },
      points: { size: 6 }
    },
    axes: [{ show: false }, { show: false }],
    scales: {
      x: { time: false, range: () => [0, props().chart.end] },
      y: { range: () => [props().track.low, props().track.high] }
    },
    series: [
      {},
      {
        stroke: line,
        width: 1.5,
        fill: track.filled ? () => faded(box, '--jp-brand-color1', 14) : undefined,
        paths: track.stepped ? uPlot.paths.stepped?.({ align: 1 }) : undefined,
        points: { show: u => !track.filled && u.data[0].length <= 3 }
      },
      {
        stroke: () => colour(box, '--jp-ui-font-color2'),
        width: 1,
        dash: [4, 3],
        points: { show: false }
      }
    ],
    hooks: {
      drawClear: [
        u => (props().track.kind === 'gpus' ? undefined : middleLine(u, colour(box, '--jp-border-color2')))
      ],
      draw: [
        u => dashes(u, props().chart.marks, faded(box, '--jp-ui-font-color0', 55)),
        u => bands(u, props().track, colour(box, '--jp-error-color1'), faded(box, '--jp-error-color1', 14))
      ],
      setCursor: [
        u => {
          const index = u.cursor.idx;
          if (index === null || index === undefined) {
            props().onPoint(null);
          } else {
            props().onPoint(props().track.line.odd?.get(index) ?? u.data[1][index] ?? null);
          }
        }
      ]
    }
  };
}

function plotted({ track, smooth }: IPlotProps): uPlot.AlignedData {
  const { line, smoothed } = track;
  return [line.x, line.y, (smooth && smoothed) || line.x.map(() => null)];
}

export function Plot(props: IPlotProps): React.JSX.Element {
  const box = React.useRef<HTMLDivElement>(null);
  const plot = React.useRef<uPlot | null>(null);
  const latest = React.useRef<IPlotProps>(props);
  latest.current = props;
  const { track } = props;

  React.useLayoutEffect(() => {
    const element = box.current;
    if (!element || typeof ResizeObserver === 'undefined') {
      return;
    }
    const data = (): uPlot.AlignedData => {
      return plotted(latest.current as IPlotProps);
    };
    const created = new uPlot(options(element, latest, element.getBoundingClientRect()), data(), element);
    plot.current = created;
    const sized = new ResizeObserver(() => {
      const { width, height } = element.getBoundingClientRect();
      if (width > 0 && height > 0) {
        created.setSize({ width: Math.floor(width), height: Math.floor(height) });
      }
    });
    sized.observe(element);
    const themed = new MutationObserver(() => created.redraw());
    themed.observe(document.body, {
      attributes: true,
      attributeFilter: ['data-jp-theme-name', 'data-jp-theme-light']
    });
    return () => {
      sized.disconnect();
      themed.disconnect();
      created.destroy();
      plot.current = null;
    };
  }, [track.stepped, track.filled]);

  React.useLayoutEffect(() => {
    plot.current?.setData(plotted(props));
  });

  return (
    <div
      ref={box}
      className="jp-dlaas-plot"
      role="img"
      aria-label={[
        track.label,
        `${track.value} ${track.unit}`.trim(),
        ...track.gaps.map(gap => gap.text),
        track.origin
      ]
        .filter(Boolean)
        .join(', ')}
    />
  );
}
