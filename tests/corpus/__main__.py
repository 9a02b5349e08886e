"""`python -m tests.corpus NOTEBOOK|FOLDER… [--cell N] [--json]`: does it train as a job, with the same numbers?

Works for anybody's notebooks (`.ipynb`) as for those beside this file. Each runs in a copy of its folder.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.corpus.reading import read
from tests.corpus.running import Result, Runner


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.corpus", description=__doc__)
    parser.add_argument("paths", nargs="*", type=Path, default=[Path(__file__).with_name("notebooks")])
    parser.add_argument("--cell", type=int, help="the training cell, counting code cells from 1")
    parser.add_argument("--json", action="store_true", help="one JSON line per notebook, as it is done")
    parser.add_argument("--jobs", type=int, default=1, help="notebooks at a time")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds per cell")
    parser.add_argument("--keep", action="store_true", help="leave the folder with all jobs, and say where it is")
    parser.add_argument("--forks", action="store_true", help="kernels that have imported the framework already: faster")
    parser.add_argument("--times", type=int, default=1, help="how often the training cell is run, one after the other")
    asked = parser.parse_args()
    os.environ["JUPYTER_DLAAS_WARM"] = "1"
    folder = Path(tempfile.mkdtemp(prefix="dlaas-corpus-"))
    runner = Runner(folder, timeout_s=asked.timeout, forks=asked.forks, times=asked.times)
    results: list[Result] = []

    def run(path: Path) -> Result:
        try:
            notebook = read(path, asked.cell)
        except (ValueError, KeyError, OSError) as error:
            return Result(path=str(path), error=f"cannot be read: {error}")
        return runner.run(notebook)

    try:
        with ThreadPoolExecutor(asked.jobs) as threads:
            for result in threads.map(run, _files(asked.paths)):
                results.append(result)
                print(json.dumps(dataclasses.asdict(result)) if asked.json else text_of(result), flush=True)
    finally:
        runner.close()
        if asked.keep:
            print(f"kept: {folder}", file=sys.stderr)
        else:
            shutil.rmtree(folder, ignore_errors=True)
    if not asked.json:
        print(summary(results))
    return 0 if all(one.is_good for one in results) else 1


def _files(paths: list[Path]) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
            yield from sorted(one for kind in ("*.ipynb", "*.cells") for one in path.rglob(kind) if _counts(one))
        else:
            yield path


def _counts(path: Path) -> bool:
    return ".ipynb_checkpoints" not in path.parts


def text_of(result: Result) -> str:
    """One notebook, for a terminal."""
    name = Path(result.path).name
    if not result.ran:
        return f"{name}: DOES NOT RUN: {result.error}"
    if not result.trained:
        return f"{name}: NOT TRAINED: {result.error}"
    if result.same:
        same = "identical" if result.identical else f"same within {result.largest_difference:.1g}"
        same += f" ({result.compared} numbers and arrays)"
        same += f", with {result.advice_taken}" if result.advice_taken else ""
        same += f"; {len(result.unsteady)} do not repeat in another kernel" if result.unsteady else ""
    elif result.same is None and result.repeats is False:
        same = "does not repeat its own numbers"
    elif result.same is None:
        same = "nothing to compare"
    else:
        same = f"DIFFERS by {result.largest_difference:.3g} in {', '.join(result.differing[:4])}"
    shown = f"shows {', '.join(result.metrics[:6]) or result.progress}" if result.shows else "shows NOTHING"
    lines = [f"{name}: trained, {same}; {shown}; {result.seconds.get('all')} s"]
    lines += [f"  CHANGED in the kernel: {', '.join(result.kernel_changed)}"] if result.kernel_changed else []
    lines += [f"  not brought back: {', '.join(result.not_brought)}"] if result.not_brought else []
    lines += [
        f"  {code}: {text}"
        for code, text in result.notes
        if not code.startswith(("left_out", "suggest", "elastic_hint"))
    ]
    return "\n".join(lines)


def summary(results: list[Result]) -> str:
    """Return the counts of all of them."""
    ran = [one for one in results if one.ran]
    trained = [one for one in ran if one.trained]
    repeat = [one for one in trained if one.same is not None]
    same = sum(bool(one.same) for one in repeat)
    return "\n".join(
        (
            f"{len(results)} notebooks, {len(ran)} run",
            f"trained as a job      {_share(len(trained), len(ran))}",
            f"same numbers          {_share(same, len(repeat))} of those that repeat some",
            f"repeat all            {_share(sum(one.repeats is True for one in trained), len(trained))}",
            f"curve or progress     {_share(sum(one.shows for one in trained), len(trained))}",
            f"left the kernel alone {_share(sum(not one.kernel_changed for one in trained), len(trained))}",
        )
    )


def _share(part: int, whole: int) -> str:
    return f"{part} of {whole}" + (f", {100 * part / whole:.0f} %" if whole else "")


if __name__ == "__main__":
    sys.exit(main())
