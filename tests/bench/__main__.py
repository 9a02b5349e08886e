"""`python -m tests.bench`: the numbers of "Starting and talking", with their peers in the same run. Asserts nothing."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from tests.bench.measuring import Bench, Unmeasurable, load, machine
from tests.bench.table import Line, brief, not_measured, render
from tests.whole.site import Site

ROWS: Final[dict[str, str]] = {
    "starting": "submit → first user line, → torch usable; beside python script.py",
    "result": "submit → result back; beside python script.py and jupyter-scheduler",
    "card": "%%train shift-enter → live card, in a browser",
    "engine": "an engine from nothing",
    "many": "trivial jobs per second, accepts per second",
    "talking": "print() → WebSocket client; state change → WebSocket client",
    "overhead": "steps per second; beside the plain script and torchrun",
    "curves": "curves without a changed line; in turn with the same loop without them",
    "elasticity": "changes of size while a job trains, killed learners, halts; beside torchrun elastic and torchft",
    "pods": "learners in pods: changes at the API server → card, pauses; beside the local pool (needs make cluster)",
    "recovery": "kill -9 of server, engine, guardian, learner, all three → work continues; beside import tornado",
    "importing": "import jupyter_dlaas",
    "preflight": "what %%train looks at before it asks the pool, in a usual torch notebook",
    "checking": "jupyter dlaas check: the median notebook, the largest",
    "autoscaling": "the autoscaler beside Or et al.'s rule, on curves that are known",
    "scheduling": "the scheduler in virtual time: policies beside their references, cost of a decision",
    "estimates": "start estimates against what then happens; finish-time fairness",
    "pollux": "sizes of running jobs on Pollux' workloads, beside what its authors published",
    "slurm": "Slurm on one node (with --slurm; Debian packages slurm-wlm slurmctld slurmd munge)",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the table; 0 whatever the numbers say."""
    rows = "\n".join(f"  {name:10} {says}" for name, says in ROWS.items())
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench",
        description=f"{__doc__}\n\nrows:\n{rows}",
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("--only", nargs="+", choices=[*ROWS], default=None, metavar="ROW", help="just these rows")
    parser.add_argument("--runs", type=int, default=7, help="runs of each side (7)")
    parser.add_argument("--no-peers", action="store_true", help="without what must be installed first")
    parser.add_argument("--slurm", action="store_true", help="Slurm too, where it is installed; needs root")
    parser.add_argument("--json", type=Path, default=None, metavar="OUT", help="write the figures there too")
    options = parser.parse_args(argv)
    chosen = options.only or [name for name in ROWS if name != "slurm" or options.slurm]
    began, begin_s = load(), time.monotonic()
    print(f"{machine()}\nload average at the beginning: {began}\n", flush=True)
    lines: list[Line] = []
    for name in chosen:
        print(f"… {name}: {ROWS[name]}", file=sys.stderr, flush=True)
        lines += _measured(name, options.runs, not options.no_peers)
    print(render(lines))
    print("\nmedian [least–most, runs]; runs in turn (A B A B), one round thrown away; figures in brackets: published")
    print(f"load average at the end: {load()}; it took {time.monotonic() - begin_s:.0f} s")
    if options.json is not None:
        found = {"machine": machine(), "load": [began, load()], "lines": [asdict(line) for line in lines]}
        options.json.write_text(json.dumps(found, indent=1, ensure_ascii=False))
    return 0


def _measured(name: str, runs: int, with_peers: bool) -> list[Line]:
    """Measure one row on a pool of its own and print it at once. A row that fails does not stop the others."""
    lines: list[Line] = []
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as folder:
        site = Site(Path(folder) / "site")
        try:
            for line in importlib.import_module(f"tests.bench.rows.{name}").measure(Bench(site, runs, with_peers)):
                print(f"  {brief(line)}", file=sys.stderr, flush=True)
                lines.append(line)
        except Unmeasurable as error:
            lines.append(not_measured(ROWS[name], "", str(error)))
        except Exception as error:  # noqa: BLE001 - a row whose part has not landed must not take the others with it
            traceback.print_exc()
            lines.append(not_measured(ROWS[name], "", f"{type(error).__name__}: {error}"))
        finally:
            site.close()
    return lines


if __name__ == "__main__":
    raise SystemExit(main())
