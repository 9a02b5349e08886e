import * as React from 'react';

/** A signal of changes. */
interface IChanges {
  connect(slot: () => void): boolean;
  disconnect(slot: () => void): boolean;
}

const DRAW_EVERY_MS = 100;
const TICK_MS = 1000;

/** Return whether the element is on screen, in a visible tab. Other elements need not be drawn. */
export function useSeen(element: React.RefObject<Element>): boolean {
  const [inside, setInside] = React.useState(true);
  const [shown, setShown] = React.useState(!document.hidden);
  React.useEffect(() => {
    const onChange = (): void => setShown(!document.hidden);
    document.addEventListener('visibilitychange', onChange);
    return () => document.removeEventListener('visibilitychange', onChange);
  }, []);
  React.useEffect(() => {
    if (!element.current || typeof IntersectionObserver === 'undefined') {
      return;
    }
    const observer = new IntersectionObserver(
      entries => setInside(entries[entries.length - 1].isIntersecting),
      {
        rootMargin: '200px'
      }
    );
    observer.observe(element.current);
    return () => observer.disconnect();
  }, [element]);
  return inside && shown;
}

/** Redraw after changes: at once, then at most ten times a second; when seen again, in one frame. */
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
    const onChange = (): void => {
      if (timer === undefined) {
        timer = window.setTimeout(fire, Math.max(0, last + DRAW_EVERY_MS - performance.now()));
      }
    };
    changes.connect(onChange);
    draw();
    return () => {
      changes.disconnect(onChange);
      window.clearTimeout(timer);
    };
  }, [changes, seen]);
}

/** Return the time in seconds, updated once a second, for texts such as "12 s ago". */
export function useNow(running: boolean): number {
  const [nowS, setNow] = React.useState(() => Date.now() / 1000);
  React.useEffect(() => {
    if (!running) {
      return;
    }
    setNow(Date.now() / 1000);
    const timer = window.setInterval(() => setNow(Date.now() / 1000), TICK_MS);
    return () => window.clearInterval(timer);
  }, [running]);
  return nowS;
}
