import * as React from 'react';

import { useLanguage } from '../../language';
import type { IJobState } from '../../model/job';
import { isFinal } from '../../protocol';
import { Fold } from '../controls/Fold';
import type { ICardHandlers, IPicture } from '../handlers';

const KEPT = /^\[(?:figure )?kept as [^\]]+\]$/;

/** Return the last line of the log that names a picture; when it changes, there is one to fetch. */
function lastPictureLine(state: IJobState): string {
  const { rows } = state.log;
  for (let i = rows.length - 1; i >= 0; i--) {
    if (KEPT.test(rows[i].text)) {
      return `${rows[i].key} ${rows[i].text}`;
    }
  }
  return '';
}

/** The figures that a job showed and the pictures that it displayed, newest last. */
export function Pictures(props: { state: IJobState; handlers: ICardHandlers }): React.JSX.Element | null {
  const { trans } = useLanguage();
  const { state, handlers } = props;
  const [pictures, setPictures] = React.useState<readonly IPicture[]>([]);
  const hasEnded = isFinal(state.view.state);
  const line = lastPictureLine(state);
  const list = handlers.pictures;
  const mayHavePictures = Boolean(list) && (line !== '' || (hasEnded && state.view.started_s !== null));

  React.useEffect(() => {
    let cancelled = false;
    if (mayHavePictures && list) {
      void list().then(found => {
        if (!cancelled) {
          setPictures(found);
        }
      });
    }
    return () => {
      cancelled = true;
    };
  }, [mayHavePictures, line, hasEnded, list]);

  if (pictures.length === 0) {
    return null;
  }
  const newest = pictures[pictures.length - 1].name;
  return (
    <Fold
      title={trans.__('Pictures')}
      gist={trans._n('%1 picture · %2', '%1 pictures · %2', pictures.length, newest)}
    >
      {() => (
        <ul className="jp-dlaas-pictures">
          {pictures.map(picture => (
            <Picture key={picture.name} picture={picture} version={`${line} ${hasEnded}`} />
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
    let cancelled = false;
    let objectUrl = '';
    void picture.load().then(blob => {
      if (blob && !cancelled) {
        objectUrl = URL.createObjectURL(blob);
        setUrl(objectUrl);
      }
    });
    return () => {
      cancelled = true;
      if (objectUrl) {
        URL.revokeObjectURL(objectUrl);
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
