"""Iterators, files and context managers that an epoch begins: a halt within it keeps their positions or names them."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.learner.in_process import SETUP, run_with_halts, start

HEAD: Final = f"""{SETUP}
import contextlib, csv, h5py, io, sqlite3, tempfile, warnings
from pathlib import Path
data, seen, items = torch.arange(20.0), [], list(range(100))
def numbers(): yield from items
class Loader:
    def __init__(self): self.count = 0
    def __iter__(self):
        for batch in run.batches(data, 5):
            self.count += 1
            yield batch
    def close(self): seen.append(self.count)
class Feed:
    def __enter__(self):
        self.numbers = numbers()
        return self
    def __exit__(self, *_): del self.numbers
feed = Feed()
lines = Path(__file__).with_name("lines.txt")
lines.write_text("".join(f"{{number}}\\n" for number in items))
run = dlaas.run()
"""
KEPT: Final = {
    "zip": "for x, batch in zip(items, run.batches(data, 5)): seen.append((x, batch.sum().item()))",
    "numbered zip": "for at, (batch, x) in enumerate(zip(run.batches(data, 5), items)): seen.append((at, x))",
    "iterator of batches": "for at, batch in enumerate(iter(run.batches(data, 5))): seen.append(at)",
    "closing": """
        with contextlib.closing(Loader()) as loader:
            for batch in loader: seen.append(loader.count)""",
    "file": """
        with lines.open() as file:
            for batch in run.batches(data, 5): seen.append(file.readline())""",
    "redirected output": """
        with contextlib.redirect_stdout(io.StringIO()) as out:
            for batch in run.batches(data, 5): print(run.step)
        seen.append(out.getvalue())""",
    "recorded warnings": """
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for batch in run.batches(data, 5): warnings.warn(str(run.step))
        seen.append([str(one.message) for one in caught])""",
}
"""By name: the body of an epoch that continues exactly."""
NAMED: Final = {
    "with contextlib.closing(numbers()) as it:": ("next(it)", "`it` would restart from its first item"),
    "with feed:": ("next(feed.numbers)", "`feed` would restart from its first item"),
    "with lines.open() as file:": ("next(file)", "`file` is read by a loop or by next()"),
    "with lines.open() as file, contextlib.nullcontext(csv.reader(file)) as rows:": (
        "next(rows)",
        "`rows` would restart from its first item",
    ),
    "with tempfile.TemporaryDirectory() as folder:": ("Path(folder, 'a').touch()", "`folder` cannot be kept"),
    "with tempfile.TemporaryFile('w+') as file:": ("file.write('a')", "`file` cannot be kept"),
    "with contextlib.closing(sqlite3.connect(':memory:')) as base:": (
        "base.execute('select 1')",
        "`base` cannot be kept",
    ),
    "if base := sqlite3.connect(lines.with_name('new')):": ("base.execute('select 1')", "`base` cannot be kept"),
    "with h5py.File(lines.with_name('new'), 'w') as file:": ("file.attrs['at'] = 1", "`file` cannot be kept"),
    "with lines.with_name('new').open('w') as file:": ("file.write('a')", "`file` is open for writing"),
}
"""By what an epoch begins: how a step uses it, and the beginning of the only report."""
AROUND: Final = {
    "zip(numbers(), run.batches(data, 5))": "`zip` around run.batches(…) would count from its first item",
    "itertools.islice(run.batches(data, 5), 3)": "`islice` around run.batches(…)",
}
STACKED: Final = """
def train():
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.nullcontext())
        hook = model.register_forward_hook(lambda *_: seen.append(bool(stack)))
        for batch in run.batches(data[:, None], 5): model(batch).sum().backward()
        hook.remove()
model = nn.Linear(1, 1)
for epoch in run.epochs(2): train()
"""


@pytest.fixture(scope="module", autouse=True)
def _few_objects() -> Iterator[None]:
    """Search only new objects, as in learners, which are forked with frozen objects."""
    gc.freeze()
    yield
    gc.unfreeze()


def reports(capfd: pytest.CaptureFixture[str]) -> list[str]:
    return [line.strip("[]") for line in capfd.readouterr().err.splitlines() if line.startswith("[")]


@pytest.mark.parametrize("name", KEPT)
def test_what_an_epoch_begins_continues(tmp_path: Path, capfd: pytest.CaptureFixture[str], name: str) -> None:
    source = f"{HEAD}for epoch in run.epochs(2):\n    if True:\n        {KEPT[name].strip()}\n"
    alone = run_with_halts(tmp_path / "alone", source)["seen"]

    assert run_with_halts(tmp_path / "halted", source, (2, 3))["seen"] == alone
    assert reports(capfd) == []


@pytest.mark.parametrize("header", NAMED)
def test_what_a_halt_would_reset_is_reported(tmp_path: Path, capfd: pytest.CaptureFixture[str], header: str) -> None:
    use, report = NAMED[header]
    loop = f"for epoch in run.epochs(2):\n    {header}\n        for batch in run.batches(data, 5): {use}\n"
    start(tmp_path, HEAD + loop, stop_at=2)

    (found,) = reports(capfd)
    assert found.startswith(report)


@pytest.mark.parametrize("around", AROUND)
def test_iterators_around_the_batches_are_reported(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], around: str
) -> None:
    start(tmp_path, f"{HEAD}for epoch in run.epochs(2):\n    for one in {around}: pass\n", stop_at=2)

    (found,) = reports(capfd)
    assert found.startswith(AROUND[around])
    assert "`for index, batch in enumerate(run.batches(…)):`" in found


def test_epochs_are_paired_and_numbered_by_their_place(tmp_path: Path) -> None:
    source = f"""{HEAD.replace("run.batches", "list")}
for at, (epoch, x) in enumerate(zip(run.epochs(6), items)): seen.append((at, epoch, x))
"""
    assert run_with_halts(tmp_path, source, (2, 2))["seen"] == [(n, n, n) for n in range(6)]


def test_hook_that_refers_to_an_exit_stack_is_kept(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run_with_halts(tmp_path, HEAD + STACKED, (3, 2))["seen"] == [True] * 8
    assert reports(capfd) == []
