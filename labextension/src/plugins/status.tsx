import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ReactWidget } from '@jupyterlab/apputils';
import { ISettingRegistry } from '@jupyterlab/settingregistry';
import { IStatusBar } from '@jupyterlab/statusbar';
import { ITranslator } from '@jupyterlab/translation';
import type { IDisposable } from '@lumino/disposable';
import * as React from 'react';

import { type ILanguage, LanguageContext } from '../language';
import type { Jobs } from '../model/jobs';
import { IJobs } from '../tokens';
import { useChanges, useNow } from '../views/hooks';
import { StatusItem } from '../views/panel/StatusItem';
import { languageFor } from './language';
import { CommandIDs } from './names';
import { readSettings } from './settings';

function LiveStatus(props: { jobs: Jobs; failed: readonly string[]; onOpen: () => void }): React.JSX.Element {
  const { jobs } = props;
  useChanges(jobs.changed, true);
  const open = jobs.unfinished.length > 0;
  const nowS = useNow(open && jobs.connection.stale);
  const { user } = jobs;
  const views = jobs.list
    .map(m => ({ ...m.view, progress: m.state.progress }))
    .filter(v => !user || v.owner === user);
  const { connection } = jobs;
  return (
    <span className="jp-dlaas">
      <StatusItem
        views={views}
        failed={props.failed}
        stale={connection.stale && connection.kind !== 'idle' && connection.kind !== 'absent'}
        receivedS={connection.receivedS}
        nowS={nowS}
        onOpen={props.onOpen}
      />
    </span>
  );
}

class Status extends ReactWidget {
  constructor(
    private readonly jobs: Jobs,
    private readonly onOpen: () => void,
    private readonly language: ILanguage
  ) {
    super();
    jobs.changed.connect(this.jobsChanged, this);
    jobs.ended.connect(this.jobEnded, this);
  }

  override dispose(): void {
    if (!this.isDisposed) {
      this.jobs.changed.disconnect(this.jobsChanged, this);
      this.jobs.ended.disconnect(this.jobEnded, this);
      this.watch?.dispose();
      super.dispose();
    }
  }

  protected override render(): React.JSX.Element {
    return (
      <LanguageContext.Provider value={this.language}>
        <LiveStatus jobs={this.jobs} failed={this.failed} onOpen={this.open} />
      </LanguageContext.Provider>
    );
  }

  private readonly open = (): void => {
    this.failed = [];
    this.update();
    this.onOpen();
  };

  /** Follow the pool while a job of this page is unfinished; a page without jobs keeps no engine running. */
  private jobsChanged(): void {
    const open = this.jobs.unfinished.length > 0;
    if (open && !this.watch) {
      this.watch = this.jobs.watchPool();
    } else if (!open && this.watch) {
      this.watch.dispose();
      this.watch = null;
    }
  }

  private jobEnded(_: Jobs, view: { id: string; state: string }): void {
    if (view.state === 'FAILED') {
      this.failed = [...this.failed, view.id];
      this.update();
    }
  }

  private failed: string[] = [];
  private watch: IDisposable | null = null;
}

export const status: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-dlaas:status',
  description: 'Shows running and waiting training jobs in the status bar.',
  autoStart: true,
  requires: [IJobs],
  optional: [IStatusBar, ISettingRegistry, ITranslator],
  activate: async (
    app: JupyterFrontEnd,
    jobs: IJobs,
    bar: IStatusBar | null,
    registry: ISettingRegistry | null,
    translator: ITranslator | null
  ): Promise<void> => {
    if (!bar) {
      return;
    }
    const item = new Status(
      jobs,
      () => void app.commands.execute(CommandIDs.openPanel),
      languageFor(translator)
    );
    let placed: IDisposable | null = null;
    await readSettings(registry, settings => {
      if (settings.statusBar && !placed) {
        placed = bar.registerStatusItem('jupyter-dlaas:status', {
          item,
          align: 'right',
          rank: 90
        });
      } else if (!settings.statusBar) {
        placed?.dispose();
        placed = null;
      }
    });
  }
};
