import * as React from 'react';

import type { IJobState } from '../../model/job';
import { isFinal } from '../../protocol';
import { Fold } from '../controls/Fold';
import type { ICardHandlers, IPicture } from '../handlers';

const KEPT = /^\[(?:figure )?kept as [^\]]+\]$/;

/** What the log says of pictures last: when it changes there is something to fetch. */
function lastKept(state: IJobState): string {
  const { rows } = state.log;
  for (let i = rows.length - 1; i >= 0; i--) {
    if (KEPT.test(rows[i].text)) {
      return `${rows[i].key} ${rows[i].text}`;
    }
  }
  return '';
}

/** Figures that the job showed and pictures that it displayed, newest last, as the files that it kept. */
export function Pictures(props: { state: IJobState; handlers: ICardHandlers }): React.JSX.Element | null {
  const { state, handlers } = props;
  const [pictures, setPictures] = React.useState<readonly IPicture[]>([]);
  const ended = isFinal(state.view.state);
  const kept = lastKept(state);
  const ask = handlers.pictures;
  const wanted = Boolean(ask) && (kept !== '' || (ended && state.view.started_s !== null));

  React.useEffect(() => {
    let gone = false;
    if (wanted && ask) {
      void ask().then(found => {
        if (!gone) {
          setPictures(found);
        }
      });
    }
    return () => {
      gone = true;
    };
  }, [wanted, kept, ended, ask]);

  if (pictures.length === 0) {
    return null;
  }
  const gist = `${pictures.length} kept · ${pictures[pictures.length - 1].name}`;
  return (
    <Fold title="Pictures" gist={gist}>
      {() => (
        <ul className="jp-dlaas-pictures">
          {pictures.map(picture => (
            <Picture key={picture.name} picture={picture} version={`${kept} ${ended}`} />
          ))}
        </ul>
      )}
    </Fold>
  );
}

/** One picture, fetched when it is shown. `version` changes when the job may have drawn it anew. */
function Picture({ picture, version }: { picture: IPicture; version: string }): React.JSX.Element {
  const [url, setUrl] = React.useState('');
  React.useEffect(() => {
    let gone = false;
    let made = '';
    void picture.load().then(blob => {
      if (blob && !gone) {
        made = URL.createObjectURL(blob);
        setUrl(made);
      }
    });
    return () => {
      gone = true;
      if (made) {
        URL.revokeObjectURL(made);
      }
    };
  }, [picture, version]);
  return (
    <li>
      <figure>
        {url && <img src={url} alt={picture.name} />}
        <figcaption className="jp-dlaas-dim">{picture.name}</figcaption>
      </figure>
    </li>
  );
}
