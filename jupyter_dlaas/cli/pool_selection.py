"""Verb `pool use`: choose where a pool's jobs run. The server side checks the cluster and writes the settings."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Final

from jupyter_dlaas.client import discovery
from jupyter_dlaas.client.known_pools import holds_pool, is_for_pool
from jupyter_dlaas.wire.codec import Invalid
from jupyter_dlaas.wire.protocol import Unavailable

__all__ = ["check_usage", "use"]

_OPTIONS: Final = ("context", "namespace", "image", "kubeconfig", "engine_address", "gpu_resource")
_SWITCHES: Final = ("no_image", "force")


def use(options: argparse.Namespace) -> int:
    """Run the command of the server side, and return its exit code. After success, the pool exists."""
    import subprocess  # only this verb starts a program

    directory = discovery.pool_directory(options.pool)
    is_new = not holds_pool(directory)
    if is_new and directory.exists() and not is_for_pool(directory):
        raise Invalid(
            f"pool use: {directory} holds other files; a pool needs a directory of its own, such as "
            f"{directory / 'dlaas'}/"
        )
    interpreter = discovery.engine_interpreter(directory)  # the check needs what the engine will need
    command = [interpreter, "-m", "dlaas_server.pools.selection", "--pool-dir", str(directory), options.place]
    for name in _given(options):
        value = getattr(options, name)
        command += [_option(name)] if value is True else [_option(name), value]
    code = subprocess.call(command)
    if code == 0 and is_new:
        _create(directory)
    return code


def _create(directory: Path) -> None:
    """Create the pool's directory, and print where it is, so that a mistyped name is seen."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise Unavailable(f"the pool's directory {directory} cannot be created: {error.strerror or error}") from None
    print(f"Created the pool in {directory}.", file=sys.stderr)


def check_usage(options: argparse.Namespace) -> None:
    """Raise Invalid for options that do not go together."""
    given = _given(options)
    if options.what != "use" and given:
        raise Invalid(f"pool: {_option(given[0])} requires `pool use kubernetes`")
    if options.what == "events" and options.place is not None:
        raise Invalid(f"pool events: unexpected argument: {options.place}")
    if options.what == "use" and options.place is None:
        raise Invalid("pool use: name the place where jobs run: `pool use kubernetes` or `pool use local`")
    if options.place == "local" and given:
        raise Invalid(f"pool use local: {_option(given[0])} applies only to `pool use kubernetes`")


def _given(options: argparse.Namespace) -> list[str]:
    return [name for name in (*_OPTIONS, *_SWITCHES) if getattr(options, name)]


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"
