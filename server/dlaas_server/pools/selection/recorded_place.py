"""Record of the place where a pool's jobs run, so that an edit of `config.toml` by hand leaves no job behind."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from dlaas_server.pools.config import CONFIG_FILE, ConfigError, PoolConfig
from jupyter_dlaas.jobdir.atomic_files import read_json, write_whole

__all__ = ["check_place", "place_text"]

PLACE_FILE: Final = "place.json"
NAMED_MAX: Final = 6
HERE: Final = "this machine"


def check_place(directory: Path, config: PoolConfig, unfinished: Sequence[str]) -> None:
    """Record where the pool's jobs run. Raises ConfigError if the unfinished ones run, or were halted, elsewhere."""
    place, former = _place(config), (read_json(directory / PLACE_FILE) or {}).get("place")
    if place is None or place == former:
        return
    if isinstance(former, str) and unfinished:
        named = ", ".join(unfinished[:NAMED_MAX])
        more = f" and {len(unfinished) - NAMED_MAX} more" if len(unfinished) > NAMED_MAX else ""
        jobs = "1 unfinished job of this pool belongs"
        if len(unfinished) > 1:
            jobs = f"{len(unfinished)} unfinished jobs of this pool belong"
        raise ConfigError(
            f"{directory / CONFIG_FILE} lets jobs run on {place}, but {jobs} to {former}: {named}{more}. "
            "Undo the edit. To move the pool, end these jobs first, then use `jupyter dlaas pool use`."
        )
    write_whole(directory / PLACE_FILE, json.dumps({"format": 1, "place": place}).encode(), sync=True)


def place_text(config: PoolConfig) -> str:
    """Return the place where the pool's jobs run as the panel shows it, with the context that is in use."""
    cluster = config.cluster
    if cluster is None or cluster.context is not None:
        return config.runs_on
    from dlaas_server.pools.kubernetes.api import ApiUnreachable, KubernetesMissing  # other pools never load it
    from dlaas_server.pools.kubernetes.transport import chosen_context

    with suppress(ApiUnreachable, KubernetesMissing):
        if (chosen := chosen_context(cluster.kubeconfig, None)) is not None:
            return replace(config, kubernetes=replace(cluster, context=chosen[1])).runs_on
    return config.runs_on


def _place(config: PoolConfig) -> str | None:
    """Return the place in words; None if the settings lead to no cluster, so that nothing can be compared."""
    cluster = config.cluster
    if cluster is None:
        return HERE
    from dlaas_server.pools.kubernetes.api import ApiUnreachable, KubernetesMissing  # other pools never load it
    from dlaas_server.pools.kubernetes.transport import chosen_context

    try:
        chosen = chosen_context(cluster.kubeconfig, cluster.context)
    except (ApiUnreachable, KubernetesMissing):
        return None
    where = "" if chosen is None else f" (context {chosen[1]} of {chosen[0]})"
    return f"Kubernetes, namespace {cluster.namespace}{where}"
