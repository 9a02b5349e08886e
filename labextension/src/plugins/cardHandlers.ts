import type { JobModel } from '../model/job';
import type { Jobs } from '../model/jobs';
import type { ICardHandlers } from '../views/handlers';
import type { ICardServices } from './services';

/** Return the handlers of one job's card. `permitted` returns the model, or null if the user does not allow it. */
export function cardHandlers(
  id: string,
  jobs: Jobs,
  services: ICardServices | null,
  permitted: () => Promise<JobModel | null>
): ICardHandlers {
  return {
    scale: learners => void permitted().then(model => model?.scale(learners)),
    setElastic: elastic => void permitted().then(model => model?.setElastic(elastic)),
    act: verb =>
      void permitted().then(async model => {
        const view = await model?.act(verb);
        if (view && view.id !== id) {
          services?.showNew(view);
        }
      }),
    retryConnection: () => jobs.retry(),
    allow: () => undefined,
    copy: services ? (text, name) => services.copy(text, name) : undefined,
    copyReport: () => void services?.copyReport(id),
    goToCell: services?.goToCell
      ? () => {
          const view = jobs.get(id)?.view;
          if (view) {
            void services.goToCell?.(view);
          }
        }
      : undefined,
    openMenu: anchor => services?.openMenu(id, anchor),
    pictures: () => jobs.client.pictures(id).catch(() => [])
  };
}
