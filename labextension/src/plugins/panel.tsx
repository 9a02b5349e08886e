import { ILayoutRestorer, type JupyterFrontEnd, type JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ICommandPalette, MainAreaWidget, ReactWidget } from '@jupyterlab/apputils';
import { INotebookTracker, NotebookActions } from '@jupyterlab/notebook';
import { ITranslator } from '@jupyterlab/translation';
import type { IDisposable } from '@lumino/disposable';
import type { Message } from '@lumino/messaging';
import { Signal } from '@lumino/signaling';
import * as React from 'react';

import { type ILanguage, LanguageContext } from '../language';
import type { JobModel } from '../model/job';
import type { Jobs } from '../model/jobs';
import { isFinal } from '../protocol';
import { IJobs } from '../tokens';
import { LiveCard } from '../views/card/LiveCard';
import type { ICardHandlers } from '../views/handlers';
import { useChanges, useNow, useSeen } from '../views/hooks';
import { EXAMPLE } from '../views/panel/example';
import { Panel } from '../views/panel/Panel';
import type { IPanelHandlers } from '../views/panel/props';
import { cardHandlers } from './cardHandlers';
import { trainingIcon } from './icon';
import { languageFor } from './language';
import { openMenu } from './menu';
import { CommandIDs } from './names';
import { ICardServices } from './services';

const ROWS_MAX = 100;

function LivePanel(props: {
  jobs: Jobs;
  changes: Signal<unknown, void>;
  handlers: IPanelHandlers;
}): React.JSX.Element {
  const { jobs, handlers } = props;
  const box = React.useRef<HTMLDivElement>(null);
  const seen = useSeen(box);
  useChanges(props.changes, seen);
  const nowS = useNow(seen);
  const rows = jobs.first(ROWS_MAX).map(model => ({ id: model.id, state: model.state }));
  const { connection } = jobs;
  return (
    <div ref={box} className="jp-dlaas-panelbox">
      <Panel
        pool={jobs.pool}
        rows={rows}
        hasMore={jobs.list.length > rows.length || (jobs.pool?.queue.length ?? 0) > rows.length}
        user={jobs.user}
        isAdmin={jobs.isAdmin}
        absent={connection.kind === 'absent'}
        stale={connection.stale && connection.kind !== 'idle'}
        handlers={handlers}
        nowS={nowS}
      />
    </div>
  );
}

/** The side panel. While it is shown, it follows the pool and the progress of the jobs that it lists. */
class TrainingPanel extends ReactWidget {
  constructor(
    private readonly jobs: Jobs,
    private readonly handlers: IPanelHandlers,
    private readonly language: ILanguage
  ) {
    super();
    this.id = 'jupyter-dlaas-panel';
    this.title.icon = trainingIcon;
    this.addClass('jp-dlaas-sidepanel');
    jobs.changed.connect(this.jobsChanged, this);
  }

  override dispose(): void {
    if (!this.isDisposed) {
      this.rest();
      Signal.clearData(this);
      super.dispose();
    }
  }

  protected override onAfterShow(message: Message): void {
    super.onAfterShow(message);
    this.watch ??= this.jobs.watchPool();
    this.jobsChanged();
  }

  protected override onAfterHide(message: Message): void {
    super.onAfterHide(message);
    this.rest();
  }

  protected override render(): React.JSX.Element {
    return (
      <LanguageContext.Provider value={this.language}>
        <LivePanel jobs={this.jobs} changes={this.changes} handlers={this.handlers} />
      </LanguageContext.Provider>
    );
  }

  private jobsChanged(): void {
    if (!this.watch) {
      return;
    }
    const listed = this.jobs.first(ROWS_MAX);
    const open = new Set(listed.filter(m => !isFinal(m.view.state)).map(m => m.id));
    for (const [id, followed] of this.rows) {
      if (!open.has(id)) {
        followed.dispose();
        this.rows.delete(id);
      }
    }
    for (const model of listed) {
      if (open.has(model.id) && !this.rows.has(model.id)) {
        this.rows.set(model.id, this.follow(model));
      }
    }
    this.changes.emit();
  }

  private follow(model: JobModel): IDisposable {
    const followed = this.jobs.followRow(model.id);
    const emitChange = (): void => this.changes.emit();
    model.changed.connect(emitChange);
    return {
      get isDisposed() {
        return followed.isDisposed;
      },
      dispose: () => {
        model.changed.disconnect(emitChange);
        followed.dispose();
      }
    };
  }

  private rest(): void {
    this.watch?.dispose();
    this.watch = null;
    for (const followed of this.rows.values()) {
      followed.dispose();
    }
    this.rows.clear();
  }

  private watch: IDisposable | null = null;
  private rows = new Map<string, IDisposable>();
  private readonly changes = new Signal<this, void>(this);
}

/** One job's card in a tab of its own. */
class JobTab extends ReactWidget {
  constructor(
    private readonly handle: IDisposable & { model: JobModel },
    private readonly card: ICardHandlers,
    private readonly language: ILanguage
  ) {
    super();
    this.addClass('jp-dlaas-jobtab');
  }

  override dispose(): void {
    if (!this.isDisposed) {
      this.handle.dispose();
      super.dispose();
    }
  }

  protected override render(): React.JSX.Element {
    return (
      <LanguageContext.Provider value={this.language}>
        <LiveCard model={this.handle.model} handlers={this.card} />
      </LanguageContext.Provider>
    );
  }
}

/** Insert the example below the active cell of the current notebook, without running it. */
async function insertExample(app: JupyterFrontEnd, tracker: INotebookTracker): Promise<void> {
  if (!tracker.currentWidget) {
    await app.commands.execute('notebook:create-new', { activate: true });
  }
  const panel = tracker.currentWidget;
  if (!panel) {
    return;
  }
  await panel.context.ready;
  for (const source of EXAMPLE) {
    NotebookActions.insertBelow(panel.content);
    panel.content.activeCell?.model.sharedModel.setSource(source);
  }
  app.shell.activateById(panel.id);
}

export const panel: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-dlaas:panel',
  description: 'Adds the training panel: the pool, the jobs of the user, and the queue.',
  autoStart: true,
  requires: [IJobs, ICardServices],
  optional: [INotebookTracker, ILayoutRestorer, ICommandPalette, ITranslator],
  activate: (
    app: JupyterFrontEnd,
    jobs: IJobs,
    services: ICardServices,
    tracker: INotebookTracker | null,
    restorer: ILayoutRestorer | null,
    palette: ICommandPalette | null,
    translator: ITranslator | null
  ): void => {
    const language = languageFor(translator);
    const { trans } = language;
    const { commands, shell } = app;
    const tabs = new Map<string, MainAreaWidget<JobTab>>();

    const newTab = (model: JobModel): MainAreaWidget<JobTab> => {
      const { id } = model;
      const handle = jobs.openView(model.view);
      const card = cardHandlers(id, jobs, services, () => Promise.resolve(handle.model));
      const tab = new MainAreaWidget({ content: new JobTab(handle, card, language) });
      tab.id = `jupyter-dlaas-job-${id}`;
      tab.title.label = id;
      tab.title.icon = trainingIcon;
      tab.title.closable = true;
      tab.disposed.connect(() => tabs.delete(id));
      return tab;
    };

    const showJob = (id: string): void => {
      const model = jobs.get(id);
      if (!model) {
        return;
      }
      const tab = tabs.get(id) ?? newTab(model);
      tabs.set(id, tab);
      if (!tab.isAttached) {
        shell.add(tab, 'main');
      }
      shell.activateById(tab.id);
    };

    const handlers: IPanelHandlers = {
      scale: (id, learners) => jobs.get(id)?.scale(learners),
      act: (id, verb) => {
        void jobs
          .get(id)
          ?.act(verb)
          .then(view => {
            if (view && view.id !== id) {
              services.showNew(view);
            }
          });
      },
      openMenu: (id, anchor) => services.openMenu(id, anchor),
      openNodeMenu: (node, anchor) =>
        openMenu(commands, [CommandIDs.drain, CommandIDs.cordon, CommandIDs.uncordon], { node }, anchor),
      showJob,
      retryConnection: () => jobs.retry(),
      insertExample: tracker ? () => void insertExample(app, tracker) : undefined,
      trainNotebook: () => void commands.execute(CommandIDs.trainNotebook),
      openSettings: commands.hasCommand('settingeditor:open')
        ? () => void commands.execute('settingeditor:open', { query: 'Training' })
        : undefined
    };

    const widget = new TrainingPanel(jobs, handlers, language);
    widget.title.caption = trans.__('Training');
    shell.add(widget, 'left', { rank: 650, type: trans.__('Training') });
    restorer?.add(widget, widget.id);

    commands.addCommand(CommandIDs.openPanel, {
      label: trans.__('Open the Training Panel'),
      icon: trainingIcon,
      describedBy: { args: { type: 'object', properties: {} } },
      execute: () => shell.activateById(widget.id)
    });
    commands.addCommand(CommandIDs.openJob, {
      label: trans.__('Open in a Tab'),
      describedBy: {
        args: {
          type: 'object',
          properties: {
            id: { type: 'string', description: trans.__('Name of the job, such as resnet-48') }
          }
        }
      },
      execute: args => showJob(String(args.id ?? ''))
    });
    palette?.addItem({
      command: CommandIDs.openPanel,
      category: trans.__('Training')
    });
  }
};
