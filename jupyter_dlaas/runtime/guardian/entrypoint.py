"""Entry point of a guardian: `python -m jupyter_dlaas.runtime.guardian.entrypoint JOB_DIR [INTERPRETER]`."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

from jupyter_dlaas.runtime.fencing import watchdog
from jupyter_dlaas.runtime.fencing.lock import hold
from jupyter_dlaas.runtime.guardian.guardian import Guardian
from jupyter_dlaas.runtime.spawn.spawner import Origin
from jupyter_dlaas.runtime.system.process import become_subreaper

__all__ = ["guard", "main"]


def guard(job_dir: Path, origin: Origin) -> int:
    """Run the guardian of a job in this process and return the exit code.

    Return 0 at once if another guardian holds the job's lock.
    """
    lock = hold(job_dir, origin.start_watchdog or watchdog.keep)
    if lock is None:
        return 0
    os.umask(0o077)
    become_subreaper()
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    Guardian(job_dir, lock, origin).run()
    return 0


def main(arguments: list[str]) -> int:
    """Parse the command line (JOB_DIR and, if the job uses another one, its INTERPRETER) and run the guardian."""
    if len(arguments) not in (1, 2):
        print("usage: python -m jupyter_dlaas.runtime.guardian.entrypoint JOB_DIR [INTERPRETER]", file=sys.stderr)
        return 2
    job_dir = Path(arguments[0]).absolute()
    os.chdir("/")  # the working directory must not keep a file system from being unmounted
    with suppress(PermissionError):  # the process already leads a session
        os.setsid()
    return guard(job_dir, Origin(interpreter=arguments[1] if len(arguments) == 2 else None))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
