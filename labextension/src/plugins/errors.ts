import { Notification } from '@jupyterlab/apputils';

/** Duration of notifications, in milliseconds. */
export const NOTIFIED_MS = 8000;
export const CONFIRMED_MS = 4000;

/** Show a failed request as a notification. */
export function showError(error: unknown, autoClose: number | false = NOTIFIED_MS): void {
  Notification.error(error instanceof Error ? error.message : String(error), { autoClose });
}
