import * as React from 'react';

import { useLanguage } from '../../language';
import type { IDeviceView } from '../../protocol';
import { Icon, jobColour, numberOf } from '../controls/Icon';

/** A device: a button with the number of the job that holds it, or a mark that it is free or out of service. */
export function DeviceTile(props: {
  device: IDeviceView;
  label: string;
  onShow: (id: string) => void;
}): React.JSX.Element {
  const { trans } = useLanguage();
  const { device, label } = props;
  const { job } = device;
  if (job !== null) {
    const name = `${label}: ${job}`;
    return (
      <button
        type="button"
        className="jp-dlaas-tile"
        {...jobColour(numberOf(job))}
        aria-label={name}
        title={name}
        onClick={() => props.onShow(job)}
      >
        <b>{numberOf(job)}</b>
      </button>
    );
  }
  if (device.out_of_service !== null) {
    const name = trans.__('%1: out of service, %2', label, device.out_of_service);
    return (
      <span className="jp-dlaas-tile" data-out="" data-tone="warn" role="img" aria-label={name} title={name}>
        <Icon name="warn" marked />
      </span>
    );
  }
  const name = trans.__('%1: free', label);
  return <span className="jp-dlaas-tile" data-free="" role="img" aria-label={name} title={name} />;
}
