"""Change of the place where a pool's jobs run, in its `config.toml`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from dlaas_server.pools.config import CONFIG_FILE, load_config
from dlaas_server.pools.kubernetes.api import ApiUnreachable
from dlaas_server.pools.kubernetes.manifests.settings import KubernetesSection
from dlaas_server.pools.kubernetes.transport import chosen_context
from dlaas_server.pools.selection.config_edit import with_table
from dlaas_server.pools.selection.unfinished import UnfinishedJob, jobs_at_engine, jobs_in_store, without_engine
from jupyter_dlaas.jobdir.atomic_files import write_whole
from jupyter_dlaas.wire.codec import decode
from jupyter_dlaas.wire.protocol import Refused

__all__ = ["OPTIONS", "ClusterOptions", "requested_section", "use_kubernetes", "use_local"]

OPTIONS: Final = ("namespace", "context", "kubeconfig", "engine_address", "image", "gpu_resource")
"""Keys of section [kubernetes] that the command line sets."""
NAMED_MAX: Final = 6
ClusterOptions = Mapping[str, str]
"""Keys of section [kubernetes] that the user gave."""


def requested_section(directory: Path, given: ClusterOptions) -> KubernetesSection:
    """Return the present section [kubernetes] with these keys, enabled, and with its kubeconfig and context named.

    A context that is not named would change with `kubectl config use-context`, under running jobs.
    Raises ConfigError, Invalid, KubernetesMissing and ApiUnreachable.
    """
    valid = decode(KubernetesSection, dict(given))
    chosen = {key: getattr(valid, key) for key in given}
    present = load_config(directory).kubernetes or KubernetesSection(image=_default_image())
    if "kubeconfig" in given and "context" not in given:
        present = replace(present, context=None)  # it belongs to the former file
    return _resolved(replace(present, enabled=True, **chosen))


def _default_image() -> str:
    """Return an image with the Python of the notebooks here, but without frameworks."""
    return f"python:{sys.version_info[0]}.{sys.version_info[1]}-slim"


def _resolved(section: KubernetesSection) -> KubernetesSection:
    found = chosen_context(section.kubeconfig, section.context)
    return section if found is None else replace(section, kubeconfig=found[0], context=found[1])


def use_kubernetes(directory: Path, section: KubernetesSection, check: Callable[[], bool]) -> bool:
    """Let the pool's jobs run on a cluster, if the check succeeds. Return whether they do now.

    Raises Refused if jobs of another place are unfinished, Unavailable and ConfigError.
    """
    config = load_config(directory)
    moves = config.cluster is None or not _is_same_place(config.cluster, section)
    if moves:
        _refuse(jobs_at_engine(directory))
    if not check():
        return False
    present = config.kubernetes or KubernetesSection()
    changed = {key: getattr(section, key) for key in OPTIONS if getattr(section, key) != getattr(present, key)}
    if moves or changed:
        _write(
            directory, {"enabled": None, "namespace": section.namespace, "image": section.image, **changed}, moves=moves
        )
    return True


def use_local(directory: Path) -> bool:
    """Let the pool's jobs run on this machine; keep the cluster's settings. Return whether anything changed.

    Raises Refused if jobs of the cluster are unfinished, Unavailable and ConfigError.
    """
    if load_config(directory).cluster is None:
        return False
    _refuse(jobs_at_engine(directory))
    _write(directory, {"enabled": False}, moves=True)
    return True


def _is_same_place(former: KubernetesSection, section: KubernetesSection) -> bool:
    """Return whether a section leads to the same namespace; False if the former one leads nowhere any more."""
    try:
        resolved = _resolved(former)
    except ApiUnreachable:
        return False
    return all(getattr(resolved, key) == getattr(section, key) for key in ("namespace", "context", "kubeconfig"))


def _write(directory: Path, values: Mapping[str, str | bool | None], *, moves: bool) -> None:
    with without_engine(directory):
        if moves:
            _refuse(jobs_in_store(directory))
        file = directory / CONFIG_FILE
        text = file.read_text(encoding="utf-8") if file.exists() else ""
        edited = with_table(text, "kubernetes", values)
        mode = file.stat().st_mode & 0o777 if file.exists() else 0o600
        write_whole(Path(os.path.realpath(file)), edited.encode(), sync=True, mode=mode)


def _refuse(jobs: Sequence[UnfinishedJob]) -> None:
    """Raise Refused if there are unfinished jobs."""
    if not jobs:
        return
    named = ", ".join(f"{job.id} ({job.state.capitalize()})" for job in jobs[:NAMED_MAX])
    more = f" and {len(jobs) - NAMED_MAX} more" if len(jobs) > NAMED_MAX else ""
    count = "1 job of this pool is" if len(jobs) == 1 else f"{len(jobs)} jobs of this pool are"
    raise Refused(
        f"{count} unfinished: {named}{more}. Wait until they have ended, or cancel them; a halted job would lose its "
        "checkpoints elsewhere. Or use a second pool: jupyter dlaas pool use … --pool NAME, and --pool NAME, or "
        "JUPYTER_DLAAS_POOL=NAME, from then on."
    )
