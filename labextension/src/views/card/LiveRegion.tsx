import * as React from 'react';

const SPEAK_EVERY_MS = 5000;

/** Speaks changes of state, at most once in five seconds. */
export function Spoken({ text }: { text: string }): React.JSX.Element {
  const [said, say] = React.useState('');
  const last = React.useRef({ text, at: 0 });
  React.useEffect(() => {
    if (text === last.current.text) {
      return;
    }
    const wait = Math.max(0, last.current.at + SPEAK_EVERY_MS - Date.now());
    const timer = window.setTimeout(() => {
      last.current = { text, at: Date.now() };
      say(text);
    }, wait);
    return () => window.clearTimeout(timer);
  }, [text]);
  return (
    <div className="jp-dlaas-hidden" role="status" aria-live="polite">
      {said}
    </div>
  );
}
