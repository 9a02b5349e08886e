import type { ReadonlyJSONObject } from '@lumino/coreutils';
import { Menu } from '@lumino/widgets';

/** Open a menu of commands below its button. The button gets the focus back when the menu closes. */
export function openMenu(
  commands: Menu.IOptions['commands'],
  ids: readonly string[],
  args: ReadonlyJSONObject,
  anchor: HTMLElement
): void {
  const menu = new Menu({ commands });
  for (const command of ids) {
    if (commands.hasCommand(command)) {
      menu.addItem({ command, args });
    }
  }
  menu.aboutToClose.connect(() => {
    anchor.focus({ preventScroll: true });
    window.setTimeout(() => menu.dispose(), 0);
  });
  const { left, bottom } = anchor.getBoundingClientRect();
  menu.open(left, bottom);
}
