import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { IRenderMimeRegistry } from '@jupyterlab/rendermime';
import type { IRenderMime } from '@jupyterlab/rendermime-interfaces';
import { ITranslator } from '@jupyterlab/translation';
import type { IDisposable } from '@lumino/disposable';
import type { Message } from '@lumino/messaging';
import { Widget } from '@lumino/widgets';
import * as React from 'react';
import { createRoot, type Root } from 'react-dom/client';

import { type ILanguage, LanguageContext } from '../language';
import { type JobModel, stateOfCopy } from '../model/job';
import type { Jobs } from '../model/jobs';
import { asBundle, type IBundle, MIME_TYPE } from '../protocol';
import { IJobs } from '../tokens';
import { JobCard } from '../views/card/JobCard';
import { LiveCard } from '../views/card/LiveCard';
import type { ICardHandlers } from '../views/handlers';
import { cardHandlers } from './cardHandlers';
import { languageFor } from './language';
import { ICardServices } from './services';

/** Jobs that the user allowed in notebooks that are not trusted; for as long as the page is open. */
const allowedJobs = new Set<string>();

/** A cell's output that shows a job: its saved state at once, then the job itself. Text goes into the page as text. */
class JobRenderer extends Widget implements IRenderMime.IRenderer {
  constructor(
    private readonly jobs: Jobs,
    private readonly services: ICardServices | null,
    private readonly language: ILanguage
  ) {
    super();
    this.addClass('jp-dlaas-output');
    this.root = createRoot(this.node);
    // Lab's command-mode keys must not act on the cell while somebody works in the card; Escape goes back to the cell
    this.node.addEventListener('keydown', stopKeys);
  }

  async renderModel(model: IRenderMime.IMimeModel): Promise<void> {
    const bundle = asBundle(model.data[MIME_TYPE]);
    if (!bundle) {
      this.follow(null);
      const text = model.data['text/plain'];
      const plain = Array.isArray(text) ? text.join('') : typeof text === 'string' ? text : '';
      const { trans } = this.language;
      this.root?.render(
        <pre>{plain || trans.__('This job was saved by a version that this page cannot read.')}</pre>
      );
      return;
    }
    this.bundle = bundle;
    this.allowed = model.trusted || allowedJobs.has(bundle.job.id);
    this.follow(bundle);
    this.draw();
  }

  override dispose(): void {
    if (this.isDisposed) {
      return;
    }
    this.follow(null);
    this.node.removeEventListener('keydown', stopKeys);
    const root = this.root;
    this.root = null;
    // React refuses to unmount a tree while it is drawing it
    window.setTimeout(() => root?.unmount(), 0);
    super.dispose();
  }

  protected override onAfterAttach(message: Message): void {
    super.onAfterAttach(message);
    this.draw();
  }

  private follow(bundle: IBundle | null): void {
    const before = this.handle;
    this.handle = bundle && this.allowed ? this.jobs.open(bundle) : null;
    before?.dispose(); // after the new one is open, so that the same job is not let go in between
  }

  private draw(): void {
    const { bundle } = this;
    if (!bundle || !this.root) {
      return;
    }
    if (!this.handle) {
      const state = stateOfCopy(bundle, this.jobs.connection);
      const nowS = Date.now() / 1000;
      this.render(<JobCard state={state} handlers={this.handlers(bundle)} nowS={nowS} allowed={false} />);
    } else {
      this.render(<LiveCard bundle={bundle} model={this.handle.model} handlers={this.handlers(bundle)} />);
    }
  }

  private render(card: React.JSX.Element): void {
    this.root?.render(<LanguageContext.Provider value={this.language}>{card}</LanguageContext.Provider>);
  }

  private handlers(bundle: IBundle): ICardHandlers {
    return {
      ...cardHandlers(bundle.job.id, this.jobs, this.services, () => this.permitted(bundle)),
      allow: () => this.allow(bundle)
    };
  }

  private allow(bundle: IBundle): void {
    allowedJobs.add(bundle.job.id);
    this.allowed = true;
    this.follow(bundle);
    this.draw();
  }

  /** Return the model; ask the user first if the notebook is not trusted. */
  private async permitted(bundle: IBundle): Promise<JobModel | null> {
    if (!this.allowed) {
      if (!this.services || !(await this.services.ask(bundle.job.id))) {
        return null;
      }
      this.allow(bundle);
    }
    return this.handle?.model ?? null;
  }

  private root: Root | null;
  private bundle: IBundle | null = null;
  private allowed = false;
  private handle: (IDisposable & { model: JobModel }) | null = null;
}

function stopKeys(event: KeyboardEvent): void {
  const isShortcut = (event.ctrlKey || event.metaKey) && event.key !== 'Enter'; // saving, the palette, copying
  if (event.key !== 'Escape' && !isShortcut) {
    event.stopPropagation();
  } else if (event.key === 'Escape' && !event.defaultPrevented) {
    const card = event.currentTarget as HTMLElement;
    card.closest<HTMLElement>('.jp-Cell')?.focus({ preventScroll: true });
  }
}

export const renderer: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-dlaas:renderer',
  description: 'Shows training jobs in cell outputs as live cards.',
  autoStart: true,
  requires: [IRenderMimeRegistry, IJobs],
  optional: [ICardServices, ITranslator],
  activate: (
    _app: JupyterFrontEnd,
    registry: IRenderMimeRegistry,
    jobs: IJobs,
    services: ICardServices | null,
    translator: ITranslator | null
  ): void => {
    const language = languageFor(translator);
    // ipywidgets registers at -10 and the lower rank wins
    registry.addFactory(
      {
        safe: true,
        mimeTypes: [MIME_TYPE],
        defaultRank: -20,
        createRenderer: () => new JobRenderer(jobs, services, language)
      },
      -20
    );
  }
};
