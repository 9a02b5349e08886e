import { Widget } from '@lumino/widgets';

/** Return a dialog's body that shows a long text verbatim. */
export function textWidget(text: string): Widget {
  const body = new Widget();
  body.addClass('jp-dlaas');
  const pre = document.createElement('pre');
  pre.className = 'jp-dlaas-dialogtext';
  pre.tabIndex = 0;
  pre.textContent = text;
  body.node.append(pre);
  return body;
}
