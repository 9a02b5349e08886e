"""Code that was written for a notebook, in real jobs: pictures, display, redrawing, questions, workers."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from jupyter_dlaas.analysis.model import line_map
from jupyter_dlaas.transfer.results import load
from jupyter_dlaas.wire.journal import FactKind
from tests.notebook.cases import job as captured
from tests.runtime.jobs import Job
from tests.selection import each_nth

Build = Callable[..., Job]
PNG = b"\x89PNG\r\n\x1a\n"
CELLS = {"1-200": "cell [1]:1"}


def ran(job: Build, source: str, learners: int = 1, deadline_s: float = 60.0, **options: Any) -> Job:
    one = job(dedent(source), **{"cells": CELLS, **options})
    one.run(learners)
    assert one.closed(deadline_s=deadline_s) == "completed", one.report()
    return one


def files(job: Job) -> list[str]:
    folder = job.dir / "output"
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def raw_log(job: Job) -> str:
    """With carriage returns as they are."""
    return (job.dir / "learner-0" / "stdout.log").read_bytes().decode()


def test_shown_or_open_figures_are_saved_as_pictures(job: Build) -> None:
    one = ran(
        job,
        """
        import matplotlib
        matplotlib.use("TkAgg")
        import matplotlib.pyplot as plt
        plt.ion()
        plt.plot([1, 2, 3]); plt.show()
        figure, axes = plt.subplots(); axes.plot([1]); figure.show()
        display(figure)
        plt.close(figure)
        plt.figure(); plt.hist([1, 2, 2])
        """,
    )

    assert files(one) == ["figure-001.png", "figure-002.png", "figure-003.png", "figure-004.png"]
    assert all(one.output(name).read_bytes().startswith(PNG) for name in files(one))
    assert one.log().count("[figure kept as ") == 4


def test_only_the_first_learner_keeps_pictures(job: Build) -> None:
    one = ran(job, "import matplotlib.pyplot as plt\nplt.plot([1]); plt.show()\n", learners=2)

    assert files(one) == ["figure-001.png"]


def test_ipython_display_works_in_a_log(job: Build) -> None:
    one = ran(
        job,
        """
        from IPython.display import display, HTML, Markdown, Image, SVG
        import IPython.display as ipd
        import base64
        import pandas as pd
        from PIL import Image as Pictures
        display(pd.DataFrame({"name": ["a", "b"], "score": [1, 2]}))
        display(HTML("<b>bold</b> text"), Markdown("# Title"))
        picture = Pictures.new("RGB", (4, 4))
        picture.save("small.png")
        ipd.display(picture)
        display(Image("small.png"))
        display(SVG("<svg xmlns='http://www.w3.org/2000/svg'></svg>"))
        handle = display("first", display_id=True)
        handle.update("second")
        shell = get_ipython()
        import IPython
        print("shell", shell, IPython.get_ipython())
        """,
    )

    log = raw_log(one)
    assert "name  score\n0    a      1\n1    b      2\nbold text\n# Title\n" in log
    assert "shell None None" in log
    assert "first\rsecond\n" in log
    assert files(one) == ["display-001.png", "display-001.svg", "display-002.png"]
    assert all(one.output(name).read_bytes().startswith(PNG) for name in files(one) if name.endswith("png"))


def test_clear_output_redraws_the_last_line_and_the_last_picture(job: Build) -> None:
    one = ran(
        job,
        """
        from IPython.display import clear_output
        import matplotlib.pyplot as plt
        print("before")
        for epoch in range(5):
            clear_output(wait=True)
            plt.plot([epoch]); plt.show()
            print(f"epoch {epoch} loss: 0.{epoch}")
        print("after")
        """,
    )

    shown = [line.rpartition("\r")[2] for line in raw_log(one).split("\n")]
    assert shown == ["before", "[figure kept as figure-001.png]", "epoch 4 loss: 0.4", "after", ""]
    assert files(one) == ["figure-001.png"]
    records = [json.loads(line) for line in (one.dir / "metrics.jsonl").read_text().splitlines()]
    assert [one["values"]["loss"] for one in records] == [0.0, 0.1, 0.2, 0.3, 0.4]


@pytest.mark.parametrize(
    "ask", ["input('name? ')", "__import__('getpass').getpass('name? ')"], ids=["input", "getpass"]
)
def test_input_fails_the_job_with_advice(job: Build, ask: str) -> None:
    one = job(f"x = 1\nanswer = {ask}\n", cells={"1-2": "cell [3]:1"})
    one.run()
    failure = one.wait(FactKind.LOST).failure

    assert failure is not None
    assert failure.where is not None
    assert "cannot prompt for input in a job" in failure.what
    assert (failure.where.label, failure.where.line) == ("cell [3]", 2)


def test_a_breakpoint_is_passed_over(job: Build) -> None:
    assert "[breakpoint() was skipped" in ran(job, "breakpoint()\n").log()


WORKERS = """
import torch
from torch.utils.data import DataLoader, Dataset
import matplotlib.pyplot as plt
SCALE = 2

class Squares(Dataset):
    def __len__(self):
        return 12
    def __getitem__(self, i):
        return torch.tensor(float(i * i * SCALE))

def total(batch):
    return torch.stack(batch).sum()

if __name__ == "__main__":
    sums = []
    loader = DataLoader(Squares(), batch_size=4, num_workers=2, collate_fn=total, multiprocessing_context="{method}")
    for batch in loader:
        sums.append(batch.item())
        print("step", len(sums), "loss:", batch.item())
"""


@pytest.mark.parametrize("method", ["fork", *each_nth(["spawn", "forkserver"], 2)])
def test_dataloader_workers_use_a_dataset_of_a_cell(job: Build, method: str) -> None:
    one = ran(job, WORKERS.replace("{method}", method), outputs=("sums",), deadline_s=120.0)

    sums = load((one.dir / "results" / "sums.bin").read_bytes())
    assert sums == [sum(2.0 * i * i for i in range(first, first + 4)) for first in (0, 4, 8)]
    records = [json.loads(line) for line in (one.dir / "metrics.jsonl").read_text().splitlines()]
    assert [one["values"]["loss"] for one in records] == sums


@pytest.mark.parametrize("method", ["fork", *each_nth(["spawn", "forkserver"], 2)])
def test_pools_and_processes_use_functions_of_a_cell(job: Build, method: str) -> None:
    one = ran(
        job,
        f"""
        import multiprocessing as mp
        from concurrent.futures import ProcessPoolExecutor
        BASE = 10

        def add(x):
            return BASE + x

        def put(queue, x):
            queue.put(add(x))

        if __name__ == "__main__":
            context = mp.get_context("{method}")
            with context.Pool(2) as pool:
                pooled = pool.map(add, range(4))
            queue = context.Queue()
            process = context.Process(target=put, args=(queue, 5))
            process.start()
            alone = queue.get()
            process.join()
            with ProcessPoolExecutor(2, mp_context=context) as executor:
                done = list(executor.map(add, range(3)))
        """,
        outputs=("pooled", "alone", "done"),
        deadline_s=120.0,
    )

    found = {name: load((one.dir / "results" / f"{name}.bin").read_bytes()) for name in ("pooled", "alone", "done")}
    assert found == {"pooled": [10, 11, 12, 13], "alone": 15, "done": [10, 11, 12]}


def test_notebook_classes_survive_spawned_workers(plain_job: Build, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import multiprocessing")  # as in a process that a zygote forked
    one = ran(
        plain_job,
        """
        import multiprocessing as mp, os, sys

        class Item:
            def __init__(self, value):
                self.value = value

        if __name__ == "__main__":
            with mp.get_context("spawn").Pool(1) as pool:
                values = [one.value for one in pool.map(Item, [1, 2])]
            start = [sys.modules["__mp_main__"].Item is Item, mp.process.ORIGINAL_DIR == os.getcwd()]
        """,
        outputs=("values", "start"),
        environment={"PYTHONPATH": str(tmp_path)},
    )

    found = [load((one.dir / "results" / f"{name}.bin").read_bytes()) for name in ("values", "start")]
    assert found == [[1, 2], [True, True]]


def test_terminated_forked_worker_ends_at_once(job: Build) -> None:
    one = ran(
        job,
        """
        import collections, multiprocessing as mp, time
        context = mp.get_context("fork")
        codes = collections.Counter()
        for n in range(400):
            process = context.Process(target=time.sleep, args=(60,))
            process.start()
            time.sleep(n % 4 * 0.001)
            process.terminate()
            process.join(20)
            codes[process.exitcode] += 1
        codes = dict(codes)
        """,
        outputs=("codes",),
        deadline_s=120.0,
    )

    assert load((one.dir / "results" / "codes.bin").read_bytes()) == {-signal.SIGTERM: 400}
    assert one.log() == ""


DATASET = WORKERS.replace("{method}", "fork").replace(
    "return torch.tensor", "if i == 5: raise KeyError('bad sample')\n        return torch.tensor"
)
POOL = """
import multiprocessing as mp
def work(x):
    if x == 2: raise KeyError('bad sample')
    return x
if __name__ == "__main__":
    with mp.get_context("fork").Pool(2) as pool:
        pool.map(work, range(4))
"""


@pytest.mark.parametrize(
    ("source", "function", "where"), [(DATASET, "__getitem__", " (in DataLoader worker process 1)"), (POOL, "work", "")]
)
def test_error_in_a_worker_names_cell_and_line(job: Build, source: str, function: str, where: str) -> None:
    one = job(source, cells={"1-100": "cell [4]:1"})
    one.run()
    failure = one.wait(FactKind.LOST, deadline_s=120.0).failure
    line = next(n for n, text in enumerate(dedent(source).split("\n"), 1) if "raise KeyError" in text)

    assert failure is not None
    assert failure.where is not None
    assert failure.what == f"KeyError: 'bad sample'{where}"
    assert (failure.where.label, failure.where.line, failure.where.function) == ("cell [4]", line, function)
    assert f"cell [4], line {line}" in one.log()


def test_code_after_a_notebooks_display_still_has_its_own_input(job: Build) -> None:
    one = ran(job, "def input(text):\n    return text.upper()\n\nanswer = input('yes')\n", outputs=("answer",))

    assert load((one.dir / "results" / "answer.bin").read_bytes()) == "YES"


SHELLS = """
import IPython, os
from IPython import get_ipython as gi
ip = get_ipython()
ip.system("echo hi > one.txt")
gi().system(f"echo {1 + 1} > two.txt")
IPython.get_ipython().run_cell_magic("bash", "", "echo a > three.txt\\necho b >> three.txt")
run = ip.system
run("echo run")
name = "Ada"
print(ip.getoutput("echo $name; echo {name}"), ip is gi())
ip.magic("matplotlib inline")
ip.run_line_magic("env", "COLOUR=red")
def inside():
    get_ipython().system("echo inside")
inside()
import jupyter_dlaas as dlaas
dlaas.shell("echo also here")
for ask in (lambda: ip.run_line_magic("timeit", "1"), lambda: ip.set_next_input("x")):
    try:
        ask()
    except (RuntimeError, AttributeError) as error:
        print(error)
print(os.environ["COLOUR"], ip.config.get("IPKernelApp"))
import library
"""


def test_the_shell_of_ipython_runs_commands_by_any_name(job: Build) -> None:
    library = "import IPython\nprint('library', IPython.get_ipython(), get_ipython())\n"
    one = job(SHELLS, cells={"1-40": "cell [1]:1"}, files={"library.py": library})
    one.run()

    assert one.closed() == "completed", one.report()
    assert one.log().splitlines() == [
        "run",
        "['Ada', 'Ada'] True",
        "inside",
        "also here",
        "a job cannot run the notebook command %timeit 1. Move it to a cell above the training cell.",
        "get_ipython().set_next_input needs the notebook's kernel; a job runs without one",
        "red None",
        "library None None",
    ]
    work = one.dir.parent
    assert [(work / f"{n}.txt").read_text() for n in ("one", "two", "three")] == ["hi\n", "2\n", "a\nb\n"]


ENTRY = 'if __name__ == "__main__":\n'
PRELUDE = "from __future__ import annotations\nimport sys\nx = 3\n"


def of_cells(job: Build, *cells: str, learners: int = 1, above: str = PRELUDE) -> Job:
    """Create a job whose main part is made of these cells."""
    lines: list[str] = []
    places: dict[str, str] = {}
    first = above.count("\n") + 2
    for number, cell in enumerate(cells, 1):
        text = [f"    {line}" for line in cell.splitlines()]
        places[f"{first + len(lines)}-{first + len(lines) + len(text) - 1}"] = f"cell [{number}]:1"
        lines += text
    return ran(job, above + ENTRY + "\n".join(lines) + "\n", learners, cells=places)


@pytest.mark.parametrize(
    ("cell", "shown"),
    [
        ("y = x\ny + 1", "4\n"),
        ("x, 'a'", "(3, 'a')\n"),
        ("'text'", "'text'\n"),
        ("x;", ""),
        ("x ; # quiet", ""),
        ("x  # ; not quiet", "3\n"),
        ("None", ""),
        ("print(x)", "3\n"),
        ("y = x", ""),
        ("if x:\n    x", ""),
        ("sum(\n    [x,\n     1]\n)", "4\n"),
        ("x\ndef f(): return 1", ""),
        ("'a' * 30_000", f"'{'a' * 19_999}… (30,002 characters)\n"),
        (
            "class Odd:\n    def __repr__(self): return self.nothing\nOdd()",
            "[the value of the last expression cannot be",
        ),
    ],
)
def test_last_expression_of_a_cell_is_displayed(job: Build, cell: str, shown: str) -> None:
    found = of_cells(job, cell).log()

    assert found.startswith(shown) if "cannot be" in shown else found == shown


def test_every_cell_displays_its_last_expression_in_every_learner(job: Build) -> None:
    one = of_cells(job, "x\nx + 1", "x + 2;", "x + 3", learners=2)

    assert one.log() == one.log(1) == "4\n6\n"


def test_a_figure_in_the_last_line_is_kept_once(job: Build) -> None:
    cell = "import matplotlib.pyplot as plt\nfig, axes = plt.subplots()\n_ = axes.plot([1, 2])\nfig"
    one = of_cells(job, cell)

    assert files(one) == ["figure-001.png"]
    assert one.log().startswith("<Figure size")


def test_string_line_that_looks_like_a_marker_is_ignored(job: Build) -> None:
    text = f't = """\n{ENTRY}"""\n'
    inside = ran(job, f"{PRELUDE}{ENTRY}    {text}    len(t)\n", cells={"5-8": "cell [7]:1"})

    assert inside.log() == f"{len(ENTRY) + 1}\n"
    assert of_cells(job, "x", above=f"x = 5\n{text}").log() == "5\n"


@pytest.mark.parametrize(("last", "shown"), [("x + 1", "4\n"), ("await later(x)", "3\n"), ("x;", ""), ("y = x", "")])
def test_a_cell_that_awaits_shows_its_last_expression_too(job: Build, last: str, shown: str) -> None:
    body = f"async def later(x): return x\nawait later(1)\n{last}"
    made = captured("x = 3", train=body)

    assert ran(job, made.text, cells=line_map(made.lines)).log() == shown


def test_an_error_in_the_last_expression_names_its_line(job: Build) -> None:
    one = job(PRELUDE + ENTRY + "    x\n    x / 0\n", cells={"5-6": "cell [7]:1"})
    one.run()
    one.wait(FactKind.LEARNER_DOWN)

    assert "cell [7], line 2, in <module>\n    x / 0" in one.log()
