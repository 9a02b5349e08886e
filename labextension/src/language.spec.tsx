import { cleanup } from '@testing-library/react';
import * as React from 'react';
import { afterEach, describe, expect, it } from 'vitest';

import { cardHandlers, NOW_S, stateOf } from '../test/card';
import * as golden from '../test/golden';
import { pseudoLanguage } from '../test/language';
import { render } from '../test/render';
import { initialForm } from './model/trainForm';
import { JobCard } from './views/card/JobCard';
import { DrainPreview } from './views/dialogs/DrainPreview';
import { TrainForm } from './views/dialogs/TrainForm';
import { Panel } from './views/panel/Panel';
import type { IPanelHandlers } from './views/panel/props';
import { StatusItem } from './views/panel/StatusItem';

const ATTRIBUTES = ['aria-label', 'aria-valuetext', 'title', 'placeholder', 'alt'];

/** Return texts that neither went through the translator nor came from the server. */
function untranslated(container: HTMLElement, wire: unknown): string[] {
  const fromServer = JSON.stringify(wire).toLowerCase();
  const texts: string[] = [];
  const walker = document.createTreeWalker(container, NodeFilter.SHOW_TEXT | NodeFilter.SHOW_ELEMENT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    if (node instanceof Element) {
      texts.push(...ATTRIBUTES.map(name => (node as Element).getAttribute(name) ?? ''));
    } else if (!node.parentElement?.closest('code, pre')) {
      texts.push(node.textContent ?? '');
    }
  }
  return texts.filter(text => {
    let rest = text;
    while (/⟦[^⟦⟧]*⟧/.test(rest)) {
      rest = rest.replace(/⟦[^⟦⟧]*⟧/g, '');
    }
    // a translated sentence is cut in pieces where it contains code
    const words = rest.replace(/⟦.*$|^.*⟧/gs, '').match(/\p{L}{2,}/gu) ?? [];
    return !words.every(word => fromServer.includes(word.toLowerCase()));
  });
}

afterEach(cleanup);

describe('all texts of the page pass the translator', () => {
  it.each(['queued', 'deploying', 'processing', 'scaling', 'halted', 'completed', 'failed'])(
    'on the card of a %s job',
    name => {
      const view = golden.job(name);
      const state = stateOf(view, { live: true });
      const card = <JobCard state={state} handlers={cardHandlers()} nowS={NOW_S} allowed />;
      const { container } = render(card, pseudoLanguage);
      for (const details of container.querySelectorAll('details')) {
        details.open = true;
      }

      expect(container.textContent).toContain('⟦');
      expect(untranslated(container, [view, golden.bundle()])).toEqual([]);
    }
  );

  it('in the panel and the status bar', () => {
    const views = ['processing', 'failed', 'queued', 'halted'].map((name, i) => ({
      ...golden.job(name),
      id: `resnet-${i}`
    }));
    const rows = views.map(view => ({ id: view.id, state: stateOf(view) }));
    const handlers = { trainNotebook: () => undefined } as unknown as IPanelHandlers;
    const pool = golden.pool();
    const common = { user: 'ana', isAdmin: true, stale: false, handlers, nowS: NOW_S };
    const { container } = render(
      <>
        <Panel pool={pool} rows={rows} hasMore absent={false} {...common} />
        <Panel pool={pool} rows={[]} absent={false} {...common} />
        <Panel pool={null} rows={[]} absent {...common} />
        <StatusItem
          views={views}
          failed={['gru-41']}
          {...common}
          receivedS={NOW_S}
          onOpen={() => undefined}
        />
      </>,
      pseudoLanguage
    );

    expect(untranslated(container, [views, pool])).toEqual([]);
  });

  it('in the dialogs', () => {
    const cells = [{ id: 'a', source: 'fit(x)', tags: [] }];
    const pool = golden.pool();
    const { container } = render(
      <>
        <TrainForm
          cells={cells}
          pool={pool}
          form={initialForm(cells, 'a.ipynb', pool)}
          checked={null}
          onChange={() => undefined}
        />
        <DrainPreview view={golden.drain()} owner={() => null} isNew />
      </>,
      pseudoLanguage
    );

    expect(untranslated(container, [cells, golden.drain()])).toEqual([]);
  });
});
