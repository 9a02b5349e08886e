"""Command of `jupyter dlaas pool use`: `python -m dlaas_server.pools.selection --pool-dir DIR {local,kubernetes} …`.

Exit codes: 0 success, 1 a check failed, 2 usage or configuration error, 4 jobs are unfinished, 5 the package
`kubernetes`, the credentials or the pool's directory cannot be used.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from dlaas_server.pools.config import ConfigError
from dlaas_server.pools.kubernetes.api import connect
from dlaas_server.pools.kubernetes.leadership import pool_id
from dlaas_server.pools.kubernetes.manifests.settings import KubernetesSection
from dlaas_server.pools.kubernetes.preflight import PROBE_S, preflight, print_findings
from dlaas_server.pools.selection.selection import OPTIONS, requested_section, use_kubernetes, use_local
from jupyter_dlaas.wire.codec import DlaasError, Invalid
from jupyter_dlaas.wire.protocol import Refused

__all__ = ["main"]

_CODES: Final[tuple[tuple[type[DlaasError], int], ...]] = ((Invalid, 2), (ConfigError, 2), (Refused, 4))


def main(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code. Findings of the check go to standard error."""
    options = _parser().parse_args(arguments)
    try:
        return _use_local(options) if options.place == "local" else _use_kubernetes(options)
    except DlaasError as error:
        print(f"dlaas: {error}", file=sys.stderr)
        return next((code for kind, code in _CODES if isinstance(error, kind)), 5)
    except OSError as error:
        print(f"dlaas: the pool in {options.pool_dir} cannot be changed: {error}", file=sys.stderr)
        return 5


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="jupyter dlaas pool use", description="Choose where a pool's jobs run.")
    parser.add_argument("--pool-dir", type=Path, required=True, help="the pool's directory")
    parser.add_argument("place", choices=("local", "kubernetes"))
    for key in OPTIONS:
        parser.add_argument(f"--{key.replace('_', '-')}")
    parser.add_argument("--no-image", action="store_true")
    parser.add_argument("--force", action="store_true")
    parser.add_argument("--timeout", type=float, default=PROBE_S)
    return parser


def _use_local(options: argparse.Namespace) -> int:
    if use_local(options.pool_dir):
        print("Jobs run on this machine from now on. The cluster's settings are kept.", file=sys.stderr)
    return 0


def _use_kubernetes(options: argparse.Namespace) -> int:
    given = {key: value for key in OPTIONS if (value := getattr(options, key)) is not None}
    section = requested_section(options.pool_dir, given)
    if use_kubernetes(options.pool_dir, section, lambda: _check(options, section)):
        return 0
    print("Nothing was changed. To use the cluster anyway, add --force.", file=sys.stderr)
    return 1


def _check(options: argparse.Namespace, section: KubernetesSection) -> bool:
    api = connect(section)
    try:
        pool = pool_id(options.pool_dir) or "none yet"
        findings = preflight(api, section, pool=pool, probes_image=not options.no_image, probe_s=options.timeout)
        return print_findings(findings, file=sys.stderr) or bool(options.force)
    finally:
        api.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
