import type { TranslationBundle } from '../language';
import type {
  ICellSource,
  IChange,
  ICursor,
  IDrainView,
  IJobView,
  INotebookChecked,
  INotebookSubmit,
  IPoolView,
  IJobEvent,
  ServerMessage,
  Verb
} from '../protocol';

/** The Jupyter server as this layer needs it: made from the server settings, or a fake one in tests. */
export interface IServer {
  /** URL of the routes of dlaas_server, ending in `dlaas/`. */
  readonly url: string;
  request(url: string, init: RequestInit): Promise<Response>;
  socket(path: string): WebSocket;
}

/** An error response. `code` is stable; the message is for people. */
export class ApiError extends Error {
  constructor(
    readonly code: string,
    message: string,
    readonly status: number
  ) {
    super(message);
    this.name = 'ApiError';
  }
}

async function errorOf(response: Response, trans: TranslationBundle): Promise<ApiError> {
  try {
    const body = (await response.json()) as {
      error?: { code?: string; message?: string };
      message?: string;
    };
    const message = body.error?.message ?? body.message;
    if (message) {
      return new ApiError(body.error?.code ?? 'http', message, response.status);
    }
  } catch {
    // a proxy's page, or an empty body
  }
  return new ApiError(
    'http',
    trans.__('The server answered with status %1.', response.status),
    response.status
  );
}

function randomKey(): string {
  return `page.${crypto.randomUUID()}`;
}

/** A notebook to train, with the options of its job. */
export interface INotebookRequest {
  path: string;
  cells: ICellSource[];
  kernelName: string;
  name: string;
  learnersMin: number;
  learnersMax: number;
  priority: number;
  spot: boolean;
}

/** The REST API. Every request of the page goes through here. */
export class Client {
  constructor(
    private readonly server: IServer,
    private readonly trans: TranslationBundle
  ) {}

  pool(): Promise<IPoolView> {
    return this.json('GET', 'pool');
  }

  cordon(node: string): Promise<IPoolView> {
    return this.json('POST', `nodes/${encodeURIComponent(node)}/cordon`, {});
  }

  uncordon(node: string): Promise<IPoolView> {
    return this.json('POST', `nodes/${encodeURIComponent(node)}/uncordon`, {});
  }

  /** Return what draining the node would do. */
  previewDrain(node: string): Promise<IDrainView> {
    return this.json('GET', `nodes/${encodeURIComponent(node)}/drain`);
  }

  /** Drain the node by the plan of its preview; refused with `not_allowed` if that no longer holds. */
  drain(node: string, plan: string): Promise<IDrainView> {
    return this.json('POST', `nodes/${encodeURIComponent(node)}/drain`, { plan });
  }

  async jobs(limit = 200): Promise<IJobView[]> {
    return (await this.json<{ jobs: IJobView[] }>('GET', `jobs?limit=${limit}`)).jobs;
  }

  job(id: string): Promise<IJobView> {
    return this.json('GET', `jobs/${encodeURIComponent(id)}`);
  }

  changeSize(id: string, change: IChange): Promise<IJobView> {
    return this.json('PATCH', `jobs/${encodeURIComponent(id)}`, change);
  }

  act(id: string, verb: Verb): Promise<IJobView> {
    return this.json('POST', `jobs/${encodeURIComponent(id)}/${verb}`, {
      key: randomKey()
    });
  }

  async remove(id: string): Promise<void> {
    await this.json('DELETE', `jobs/${encodeURIComponent(id)}`);
  }

  async why(id: string): Promise<string[]> {
    return (await this.json<{ sentences: string[] }>('GET', `jobs/${encodeURIComponent(id)}/why`)).sentences;
  }

  async events(id: string): Promise<IJobEvent[]> {
    return (await this.json<{ events: IJobEvent[] }>('GET', `jobs/${encodeURIComponent(id)}/events`)).events;
  }

  async source(id: string): Promise<string> {
    return (await this.json<{ source: string }>('GET', `jobs/${encodeURIComponent(id)}/source`)).source;
  }

  async report(id: string): Promise<string> {
    return (await this.send('GET', `jobs/${encodeURIComponent(id)}/report`)).text();
  }

  /** Return the pictures among the job's files. */
  async pictures(id: string): Promise<{ name: string; load(): Promise<Blob | null> }[]> {
    type Answer = { artifacts: { path: string }[] };
    const base = `jobs/${encodeURIComponent(id)}/artifacts`;
    const { artifacts } = await this.json<Answer>('GET', base);
    return artifacts.flatMap(({ path }) => {
      const match = /^output\/(.+\.(png|jpg|svg))$/.exec(path);
      if (!match) {
        return [];
      }
      const type = { png: 'image/png', jpg: 'image/jpeg', svg: 'image/svg+xml' }[match[2]];
      const load = async (): Promise<Blob | null> => {
        try {
          const answer = await this.send(
            'GET',
            `${base}/${path.split('/').map(encodeURIComponent).join('/')}`
          );
          return new Blob([await answer.arrayBuffer()], { type });
        } catch {
          return null; // deleted meanwhile, or the server does not answer: a later request may succeed
        }
      };
      return [{ name: match[1], load }];
    });
  }

  trainNotebook(request: INotebookRequest): Promise<IJobView> {
    const body: INotebookSubmit = {
      path: request.path,
      cells: request.cells,
      kernel_name: request.kernelName,
      spec: {
        name: request.name,
        learners_min: request.learnersMin,
        learners_max: request.learnersMax,
        priority: request.priority,
        spot: request.spot
      }
    };
    return this.json('POST', 'notebook', { ...body, key: randomKey() });
  }

  /** Check what each training cell needs, and what is missing. Nothing runs. */
  checkNotebook(path: string, cells: readonly ICellSource[]): Promise<INotebookChecked> {
    return this.json('POST', 'notebook/check', { path, cells });
  }

  /** Return the stream's messages by long poll, where no WebSocket connection is possible. */
  async poll(id: string, cursor: ICursor, waitS: number, signal: AbortSignal): Promise<ServerMessage[]> {
    const logs = Object.entries(cursor.logs)
      .map(([member, offset]) => `${member}:${offset}`)
      .join(',');
    const query = `row=${cursor.row}&metrics=${cursor.metrics}&logs=${logs}&wait_s=${waitS}`;
    const path = `jobs/${encodeURIComponent(id)}/stream?${query}`;
    const response = await this.send('GET', path, undefined, signal);
    return ((await response.json()) as { messages: ServerMessage[] }).messages;
  }

  private async json<T>(method: string, path: string, body?: object): Promise<T> {
    return (await (await this.send(method, path, body)).json()) as T;
  }

  private async send(method: string, path: string, body?: object, signal?: AbortSignal): Promise<Response> {
    const init: RequestInit = { method, signal };
    if (body) {
      init.body = JSON.stringify(body);
      init.headers = { 'Content-Type': 'application/json' };
    }
    let response: Response;
    try {
      response = await this.server.request(this.server.url + path, init);
    } catch (error) {
      if (signal?.aborted) {
        throw error;
      }
      throw new ApiError('network', this.trans.__('The Jupyter server does not answer.'), 0);
    }
    if (!response.ok) {
      throw await errorOf(response, this.trans);
    }
    return response;
  }
}
