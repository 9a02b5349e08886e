"""Ends of real jobs: a program ends as it does as a script."""

from __future__ import annotations

import gzip
import subprocess
import tarfile
import threading
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from jupyter_dlaas.learner.process import interpreter_shutdown
from jupyter_dlaas.transfer.results import load
from jupyter_dlaas.wire.journal import FactKind
from tests.runtime.jobs import Job, until
from tests.selection import exhaustive

Build = Callable[..., Job]
FILES = """
import csv, gzip, io, logging, logging.handlers, tarfile, zipfile
text = open("plain.txt", "w"); text.write("end\\n")
table = csv.writer(open("table.csv", "w")); table.writerow([1, 2])
packed = gzip.open("packed.gz", "wt"); packed.write("end")
archive = zipfile.ZipFile("archive.zip", "w"); archive.writestr("a", "b")
tar = tarfile.open("archive.tar.gz", "w:gz"); info = tarfile.TarInfo("a"); info.size = 1
tar.addfile(info, io.BytesIO(b"b"))
log = logging.getLogger("mine"); log.propagate = False
log.addHandler(logging.handlers.MemoryHandler(100, target=logging.FileHandler("train.log"))); log.warning("end")

def keep():
    inner = open("closure.txt", "w"); inner.write("end")
    return lambda: inner

class Cycle:
    shared = open("class.txt", "w")
    def __init__(self):
        self.me, self.file = self, gzip.open("cycle.gz", "wt")
        self.file.write("end")

kept = keep()
Cycle.shared.write("end")
Cycle.last = Cycle()
import own
own.report("end")

class Store:
    def __init__(self):
        self.me, self.rows = self, ["end"]
    def __del__(self):
        with open("store.txt", "w") as file:
            csv.writer(file).writerow(self.rows)
store = Store()
"""
OWN = """
_file = open("own.txt", "w")
def report(text):
    _file.write(text)
"""
ENDINGS = {"an end": "", "an error": "raise ValueError"}


@pytest.fixture(params=ENDINGS)
def ended(request: pytest.FixtureRequest, plain_job: Build) -> Path:
    """Run a program that leaves files open. Return its folder."""
    one = plain_job(f"{FILES}\n{ENDINGS[request.param]}\n", files={"own.py": OWN})
    one.run()
    one.wait(FactKind.LOST if ENDINGS[request.param] else FactKind.COMPLETED)
    assert "Exception ignored" not in one.log()
    return one.dir.parent


def test_files_open_at_the_end_are_flushed(ended: Path) -> None:
    names = ("plain.txt", "train.log", "closure.txt", "class.txt", "own.txt", "store.txt")
    assert {name: (ended / name).read_text().strip() for name in names} == dict.fromkeys(names, "end")
    assert (ended / "table.csv").read_text() == "1,2\n"
    assert [gzip.decompress((ended / name).read_bytes()) for name in ("packed.gz", "cycle.gz")] == [b"end"] * 2
    with zipfile.ZipFile(ended / "archive.zip") as archive:
        assert archive.read("a") == b"b"
    with tarfile.open(ended / "archive.tar.gz") as tar:
        assert tar.getnames() == ["a"]


HELPERS = {
    "threads": """
        import logging.handlers, queue, threading
        from concurrent.futures import ThreadPoolExecutor
        listener = logging.handlers.QueueListener(queue.Queue())
        listener.start()
        timer = threading.Timer(0.01, lambda: globals().update(late=1))
        timer.start()
        pool = ThreadPoolExecutor(2)
        n = pool.submit(lambda: 3).result()
    """,
    "processes": """
        import joblib
        from concurrent.futures import ProcessPoolExecutor
        pool = ProcessPoolExecutor(1)
        n = pool.submit(max, 2, 3).result()
        joblib.Parallel(n_jobs=2)(joblib.delayed(abs)(i) for i in range(4))
    """,
    "what sys.exit leaves": """
        from concurrent.futures import ThreadPoolExecutor
        pool = ThreadPoolExecutor(1)
        n = pool.submit(lambda: 3).result()
        raise SystemExit
    """,
}


@pytest.mark.parametrize("helper", HELPERS)
def test_a_job_completes_though_helper_threads_are_left(plain_job: Build, helper: str) -> None:
    one = plain_job(HELPERS[helper], outputs=("n",))
    one.run()

    assert one.closed() == "completed"
    assert load((one.dir / "results" / "n.bin").read_bytes()) == 3
    assert "Traceback" not in one.log()


WAITING = """
import pathlib, threading, time

def upload():
    while not pathlib.Path("go").exists():
        time.sleep(0.01)
    print("uploaded")

threading.Thread(target=upload, name="uploader").start()
"""


def test_non_daemon_thread_is_awaited_and_named(plain_job: Build) -> None:
    one = plain_job(WAITING, cells={"1-20": "cell [4]:1"})
    one.run()
    one.wait(FactKind.LEARNER_UP)
    until(lambda: "]\n" in one.log(), one.report)
    said = '[The program has finished. The job waits for a thread to end: "uploader" in cell [4], line '
    assert one.log().startswith(said)
    assert ", in upload]\n" in one.log()
    (one.dir.parent / "go").touch()

    assert one.closed() == "completed"
    assert one.log().endswith("uploaded\n")


@exhaustive
def test_threads_do_not_delay_a_failed_program(plain_job: Build) -> None:
    one = plain_job(WAITING + "raise ValueError('x')\n")
    one.run()

    failure = one.wait(FactKind.LOST).failure
    assert failure is not None
    assert failure.what == "ValueError: x"
    assert 'The job waits at most 5 s for a thread to end: "uploader" in train.py, line ' in one.log()
    assert "exit handler" not in one.log()


CHILD = """
import multiprocessing, pathlib, time

def upload():
    while not pathlib.Path("go").exists():
        time.sleep(0.01)
    pathlib.Path("uploaded.txt").write_text("end")

child = multiprocessing.get_context("fork").Process(target=upload, name="uploader")
child.start()
manager = multiprocessing.get_context("fork").Manager()
"""


def test_non_daemon_child_process_is_awaited_and_named(plain_job: Build) -> None:
    # The limit of exit handlers is shorter than the child takes: it does not hold for child processes.
    short = (
        "from jupyter_dlaas.learner.process import interpreter_shutdown as shutdown\n"
        "shutdown._EXIT_S, shutdown._REARM_S = 6.0, 0.5\n"
    )
    one = plain_job(short + CHILD)
    one.run()
    one.wait(FactKind.LEARNER_UP)
    until(lambda: "]\n" in one.log(), one.report)
    time.sleep(7.0)
    (one.dir.parent / "go").touch()

    assert one.closed() == "completed"
    assert (one.dir.parent / "uploaded.txt").read_text() == "end"
    assert one.log().startswith('[The program has finished. The job waits for a process to end: "uploader" (pid ')


def test_an_exit_handler_that_takes_long_is_named(plain_job: Build) -> None:
    one = plain_job(
        "import atexit, time\n@atexit.register\ndef upload():\n    time.sleep(2.5)\n    print('uploaded')\n"
    )
    one.run()

    assert one.closed() == "completed"
    first, last = one.log().splitlines()
    assert last == "uploaded"
    assert first == (
        "[The program has finished. The job waits at most 600 s for an exit handler in train.py, line 4, in upload]"
    )


def test_a_program_that_still_runs_is_named(plain_job: Build) -> None:
    one = plain_job("import subprocess\nserver = subprocess.Popen(['sleep', '99'])\nsubprocess.run(['true'])\n")
    one.run()

    assert one.closed() == "completed"
    said = "[Still running, ended with the job: `sleep 99`. To wait for a process, call process.wait() in the cell.]\n"
    assert one.log() == said


def test_output_of_c_libraries_is_in_the_log(plain_job: Build) -> None:
    one = plain_job("import ctypes\nctypes.CDLL(None).puts(b'from C')\n")
    one.run()

    assert one.closed() == "completed"
    assert one.log() == "from C\n"


def test_programs_are_found_while_threads_end() -> None:
    is_over = threading.Event()

    def churn() -> None:
        while not is_over.is_set():
            threading.Thread(target=int).start()

    with subprocess.Popen(["sleep", "99"]) as program:
        churning = threading.Thread(target=churn)
        churning.start()
        try:
            found = [interpreter_shutdown._running_programs() for _ in range(500)]
        finally:
            is_over.set()
            churning.join()
            program.kill()

    assert all("`sleep 99`" in names for names in found)


@pytest.mark.parametrize("level", ["INFO", "WARNING"])
def test_torch_summarizes_compile_times_only_if_logged(plain_job: Build, level: str) -> None:
    program = f"""
        import torch._dynamo.utils as compiler
        compiler.tabulate = lambda *_, **__: print("formatted") or "table"
        compiler.log.setLevel("{level}")
    """
    one = plain_job(program)
    one.run()

    assert one.closed() == "completed"
    assert ("formatted" in one.log()) == (level == "INFO")
