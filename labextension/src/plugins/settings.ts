import type { ISettingRegistry } from '@jupyterlab/settingregistry';

const PLUGIN_ID = 'jupyter-dlaas:panel';

export interface ISettings {
  notifications: boolean;
  statusBar: boolean;
  refreshOutputs: boolean;
}

const DEFAULTS: ISettings = {
  notifications: true,
  statusBar: true,
  refreshOutputs: true
};

/** Call with the settings now and whenever they change; with the defaults where there is no registry. */
export async function readSettings(
  registry: ISettingRegistry | null,
  take: (settings: ISettings) => void
): Promise<void> {
  if (!registry) {
    take(DEFAULTS);
    return;
  }
  try {
    const loaded = await registry.load(PLUGIN_ID);
    const tell = (): void => take({ ...DEFAULTS, ...(loaded.composite as Partial<ISettings>) });
    loaded.changed.connect(tell);
    tell();
  } catch {
    take(DEFAULTS); // no schema was installed with us: a development build
  }
}
