"""Cost of curves without a changed line: `python -m tests.bench.autolog`. Best of some runs, in µs of CPU time.

The same calls with and without the parts that a job puts around them, in this process; rank 0 of a job that has a
recorder and a directory, so that points and progress are really written.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jupyter_dlaas.learner.control.context import Context, enter
from jupyter_dlaas.learner.control.guardian_channel import Control
from jupyter_dlaas.learner.log_capture import stdout_reader, tqdm_bars
from jupyter_dlaas.learner.log_capture.log_position import Place
from jupyter_dlaas.learner.log_capture.metric_regex import Tee
from jupyter_dlaas.wire.protocol import JobSpec

tqdm = importlib.import_module("tqdm").tqdm
PLAIN = "processing item 4711 of the data set, result ok, took 12 ms"
METRICS = "Epoch 3/10, Step [100/600], train loss: 0.5231, val acc: 92.3%"


def best(work: Callable[[], int], times: int = 5) -> float:
    """Microseconds for one of what `work` says that it did."""
    found = []
    for _ in range(times):
        begun = time.process_time()
        count = work()
        found.append((time.process_time() - begun) / count * 1e6)
    return min(found)


def printing(stream: Any, line: str, count: int) -> Callable[[], int]:
    def work() -> int:
        for _ in range(count):
            print(line, file=stream)
        return count

    return work


def iterating(count: int = 200_000) -> int:
    for _ in tqdm(range(count), file=io.StringIO(), mininterval=0.5):
        pass
    return count


def postfixing(count: int = 5_000) -> int:
    bar = tqdm(range(count), file=io.StringIO(), mininterval=0.5)
    for number in bar:
        bar.set_postfix(loss=number)
    return count


def a_job(folder: Path) -> Context:
    (folder / "train.py").write_text("pass\n")
    return Context(
        job="bench-1",
        job_dir=folder,
        spec=JobSpec(),
        member=0,
        generation=1,
        rank=0,
        world_size=1,
        seed=1,
        control=Control(folder, 0),
    )


def main() -> int:
    with tempfile.TemporaryDirectory() as name, Path(os.devnull).open("w") as nowhere:
        rows: list[tuple[str, float, float]] = []
        before = {
            "a step of tqdm": best(iterating),
            "set_postfix at each step": best(postfixing),
            "print, no number in it": best(printing(nowhere, PLAIN, 100_000)),
            "print, four numbers in it": best(printing(nowhere, METRICS, 100_000)),
        }
        enter(a_job(Path(name)))
        place = Place()
        tqdm_bars.install(place)
        reader = stdout_reader.Reader([], place, recognises=True)
        tee = Tee(nowhere, reader.line)
        rows = [
            ("a step of tqdm", before["a step of tqdm"], best(iterating)),
            ("set_postfix at each step", before["set_postfix at each step"], best(postfixing)),
            (
                "print, no number in it",
                before["print, no number in it"],
                best(printing(tee, PLAIN, 100_000)),
            ),
            (
                "print, four numbers in it",
                before["print, four numbers in it"],
                best(printing(tee, METRICS, 100_000)),
            ),
        ]
        fresh = Tee(nowhere, stdout_reader.Reader([], Place(), recognises=True).line)
        rows.append(
            ("the first 100 such lines", before["print, four numbers in it"], best(printing(fresh, METRICS, 100), 1))
        )
    print(f"{'':32}{'without':>10}{'with':>10}{'more':>10}   µs")
    for what, without, with_it in rows:
        print(f"{what:32}{without:10.2f}{with_it:10.2f}{with_it - without:10.2f}")
    return 0


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        sys.exit(main())
