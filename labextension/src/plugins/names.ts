/** Ids of the commands; users may assign keys to them. */
export const CommandIDs = {
  openPanel: 'dlaas:open-panel',
  openJob: 'dlaas:open-job',
  trainNotebook: 'dlaas:train-notebook',
  scaleUp: 'dlaas:scale-up',
  scaleDown: 'dlaas:scale-down',
  halt: 'dlaas:halt',
  resume: 'dlaas:resume',
  cancel: 'dlaas:cancel',
  checkpoint: 'dlaas:checkpoint',
  goToCell: 'dlaas:go-to-cell',
  why: 'dlaas:why',
  copyName: 'dlaas:copy-name',
  copyReport: 'dlaas:copy-report',
  showSource: 'dlaas:show-source',
  events: 'dlaas:events',
  openNotebook: 'dlaas:open-notebook',
  remove: 'dlaas:delete-record',
  cordon: 'dlaas:cordon-node',
  uncordon: 'dlaas:uncordon-node',
  drain: 'dlaas:drain-node'
} as const;
