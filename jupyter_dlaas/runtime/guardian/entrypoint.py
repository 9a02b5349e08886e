"""Start of a guardian: the program `python -m jupyter_dlaas.runtime.guardian.entrypoint JOB_DIR`."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

from jupyter_dlaas.runtime.fencing.lock import hold
from jupyter_dlaas.runtime.guardian.guardian import Guardian
from jupyter_dlaas.runtime.spawn.spawner import Origin
from jupyter_dlaas.runtime.system.process import become_subreaper

__all__ = ["guard", "main"]


def guard(job_dir: Path, origin: Origin) -> int:
    """Be the guardian of a job in this process; 0 also where another one holds it. Returns the exit code."""
    lock = hold(job_dir)
    if lock is None:
        return 0
    os.umask(0o077)
    become_subreaper()
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    Guardian(job_dir, lock, origin).run()
    return 0


def main(arguments: list[str]) -> int:
    """The command line: JOB_DIR, and the job's interpreter where it is another one."""
    if len(arguments) not in (1, 2):
        print("usage: python -m jupyter_dlaas.runtime.guardian.entrypoint JOB_DIR [INTERPRETER]", file=sys.stderr)
        return 2
    job_dir = Path(arguments[0]).absolute()
    os.chdir("/")  # a guardian must not keep anybody's disk from being taken away
    with suppress(PermissionError):  # a session of its own already
        os.setsid()
    return guard(job_dir, Origin(interpreter=arguments[1] if len(arguments) == 2 else None))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
