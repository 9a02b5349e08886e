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

/** Pass the settings to `take` now and after each change; the defaults if there is no registry. */
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
    const update = (): void => take({ ...DEFAULTS, ...(loaded.composite as Partial<ISettings>) });
    loaded.changed.connect(update);
    update();
  } catch {
    take(DEFAULTS); // a development build without an installed schema
  }
}
