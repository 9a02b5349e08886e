import * as React from 'react';

/** Anything that says when it changed. */
export interface IChanges {
  connect(slot: () => void): boolean;
  disconnect(slot: () => void): boolean;
}

const DRAW_EVERY_MS = 100;
const TICK_MS = 1000;

/** Whether the element is on screen, in a tab that is shown. What is not seen draws nothing. */
export function useSeen(element: React.RefObject<Element>): boolean {
  const [inside, set_inside] = React.useState(true);
  const [shown, set_shown] = React.useState(!document.hidden);
  React.useEffect(() => {
    const on_change = (): void => set_shown(!document.hidden);
    document.addEventListener('visibilitychange', on_change);
    return () => document.removeEventListener('visibilitychange', on_change);
  }, []);
  React.useEffect(() => {
    if (!element.current || typeof IntersectionObserver === 'undefined') {
      return;
    }
    const observer = new IntersectionObserver(
      entries => set_inside(entries[entries.length - 1].isIntersecting),
      {
        rootMargin: '200px'
      }
    );
    observer.observe(element.current);
    return () => observer.disconnect();
  }, [element]);
  return inside && shown;
}

/** Draw again after changes: at once, then at most ten times a second; up to date in one frame when seen again. */
export function useChanges(changes: IChanges, seen: boolean): void {
  const [, draw] = React.useReducer((n: number) => n + 1, 0);
  React.useEffect(() => {
    if (!seen) {
      return;
    }
    let timer: number | undefined;
    let last = 0;
    const fire = (): void => {
      timer = undefined;
      last = performance.now();
      draw();
    };
    const on_change = (): void => {
      if (timer === undefined) {
        timer = window.setTimeout(fire, Math.max(0, last + DRAW_EVERY_MS - performance.now()));
      }
    };
    changes.connect(on_change);
    draw();
    return () => {
      changes.disconnect(on_change);
      window.clearTimeout(timer);
    };
  }, [changes, seen]);
}

/** Seconds since 1970, once a second, for texts such as "12 s ago". */
export function useNow(running: boolean): number {
  const [now_s, set_now] = React.useState(() => Date.now() / 1000);
  React.useEffect(() => {
    if (!running) {
      return;
    }
    set_now(Date.now() / 1000);
    const timer = window.setInterval(() => set_now(Date.now() / 1000), TICK_MS);
    return () => window.clearInterval(timer);
  }, [running]);
  return now_s;
}
