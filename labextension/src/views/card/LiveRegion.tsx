import * as React from 'react';

const SPEAK_EVERY_MS = 5000;

/** A hidden live region that speaks changes of state, at most once in five seconds. */
export function LiveRegion({ text }: { text: string }): React.JSX.Element {
  const [spoken, setSpoken] = React.useState('');
  const last = React.useRef({ text, at: 0 });
  React.useEffect(() => {
    if (text === last.current.text) {
      return;
    }
    const delay = Math.max(0, last.current.at + SPEAK_EVERY_MS - Date.now());
    const timer = window.setTimeout(() => {
      last.current = { text, at: Date.now() };
      setSpoken(text);
    }, delay);
    return () => window.clearTimeout(timer);
  }, [text]);
  return (
    <div className="jp-dlaas-hidden" role="status" aria-live="polite">
      {spoken}
    </div>
  );
}
