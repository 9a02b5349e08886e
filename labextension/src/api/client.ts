import type {
  ICellSource,
  IChange,
  ICursor,
  IDrainView,
  IJobView,
  INotebookChecked,
  INotebookSubmit,
  IPoolView,
  ServerMessage,
  Verb
} from '../protocol';

/** What this layer needs of Jupyter; the plugin makes it of the server settings, tests make a fake one. */
export interface IServer {
  /** Address of our routes, ending in `dlaas/`. */
  readonly url: string;
  request(url: string, init: RequestInit): Promise<Response>;
  socket(path: string): WebSocket;
}

/** An answer that is not a success. `code` is stable, the message is for people. */
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

async function failure(response: Response): Promise<ApiError> {
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
    // not ours: a proxy's page, or nothing at all
  }
  return new ApiError('http', `The server answered ${response.status}.`, response.status);
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

/** The REST half of the API. Every request of the page goes through here. */
export class Client {
  constructor(private readonly server: IServer) {}

  pool(): Promise<IPoolView> {
    return this.json('GET', 'pool');
  }

  cordon(node: string): Promise<IPoolView> {
    return this.json('POST', `nodes/${encodeURIComponent(node)}/cordon`, {});
  }

  uncordon(node: string): Promise<IPoolView> {
    return this.json('POST', `nodes/${encodeURIComponent(node)}/uncordon`, {});
  }

  /** What a drain of the node would do. Nothing changes. */
  previewDrain(node: string): Promise<IDrainView> {
    return this.json('GET', `nodes/${encodeURIComponent(node)}/drain`);
  }

  /** Empty the node, if that would still do what its preview says; else refused with `not_allowed`. */
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

  async story(id: string): Promise<{ atS: number; text: string }[]> {
    type Answer = { events: { atS: number; text: string }[] };
    return (await this.json<Answer>('GET', `jobs/${encodeURIComponent(id)}/story`)).events;
  }

  async source(id: string): Promise<string> {
    return (await this.json<{ source: string }>('GET', `jobs/${encodeURIComponent(id)}/source`)).source;
  }

  async report(id: string): Promise<string> {
    return (await this.send('GET', `jobs/${encodeURIComponent(id)}/report`)).text();
  }

  /** Files that the job kept for the page to draw. */
  async pictures(id: string): Promise<{ name: string; load(): Promise<Blob | null> }[]> {
    type Answer = { artifacts: { path: string }[] };
    const base = `jobs/${encodeURIComponent(id)}/artifacts`;
    const { artifacts } = await this.json<Answer>('GET', base);
    return artifacts.flatMap(({ path }) => {
      const found = /^output\/(.+\.(png|jpg|svg))$/.exec(path);
      if (!found) {
        return [];
      }
      const type = { png: 'image/png', jpg: 'image/jpeg', svg: 'image/svg+xml' }[found[2]];
      const load = async (): Promise<Blob | null> => {
        try {
          const answer = await this.send(
            'GET',
            `${base}/${path.split('/').map(encodeURIComponent).join('/')}`
          );
          return new Blob([await answer.arrayBuffer()], { type });
        } catch {
          return null; // deleted meanwhile, or the server is away: the next look may find it
        }
      };
      return [{ name: found[1], load }];
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

  /** What each training cell would take along, and what is missing. Nothing runs. */
  checkNotebook(path: string, cells: readonly ICellSource[]): Promise<INotebookChecked> {
    return this.json('POST', 'notebook/check', { path, cells });
  }

  /** The stream's messages by long poll, for places where no WebSocket gets through. */
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
      throw new ApiError('network', 'The Jupyter server does not answer.', 0);
    }
    if (!response.ok) {
      throw await failure(response);
    }
    return response;
  }
}
