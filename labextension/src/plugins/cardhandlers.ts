import type { JobModel } from '../model/job';
import type { Jobs } from '../model/jobs';
import type { ICardHandlers } from '../views/handlers';
import type { ICardServices } from './services';

/** What a card of one job calls. `permitted` gives the model, or null when the reader does not allow it. */
export function card_handlers(
  id: string,
  jobs: Jobs,
  services: ICardServices | null,
  permitted: () => Promise<JobModel | null>
): ICardHandlers {
  return {
    scale: learners => void permitted().then(model => model?.scale(learners)),
    set_elastic: elastic => void permitted().then(model => model?.set_elastic(elastic)),
    act: verb =>
      void permitted().then(async model => {
        const view = await model?.act(verb);
        if (view && view.id !== id) {
          services?.show_new(view);
        }
      }),
    retry_connection: () => jobs.retry(),
    allow: () => undefined,
    copy: services ? (text, what) => services.copy(text, what) : undefined,
    copy_report: () => void services?.copy_report(id),
    go_to_cell: services?.go_to_cell
      ? () => {
          const view = jobs.get(id)?.view;
          if (view) {
            void services.go_to_cell?.(view);
          }
        }
      : undefined,
    open_menu: anchor => services?.open_menu(id, anchor),
    pictures: () => jobs.client.pictures(id).catch(() => [])
  };
}
