"""Failures keep their cause: class, message, cell and line, whatever goes wrong while they are reported."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from textwrap import indent
from typing import Any

import pytest

from jupyter_dlaas.failures.cell_map import CellMap
from jupyter_dlaas.learner.process import failure_report
from jupyter_dlaas.wire.codec import encode
from jupyter_dlaas.wire.journal import FactKind
from jupyter_dlaas.wire.protocol import Cause, Failure
from tests.runtime.jobs import Job

Build = Callable[..., Job]

CLASSES = """
import threading

class Refuses(Exception):
    def __str__(self):
        raise KeyError("no text")
    __repr__ = __str__

class Interrupts(Exception):
    def __str__(self):
        raise KeyboardInterrupt

class NoText(Exception):
    def __str__(self):
        return 3

class Hangs(Exception):
    def __str__(self):
        threading.Event().wait()

class Recursive(Exception):
    def __str__(self):
        return str(self)

class Hidden(Exception):
    def __getattribute__(self, name):
        raise LookupError(name)

class Nameless(type):
    __name__ = property(lambda cls: 1 / 0)
    __mro__ = property(lambda cls: 1 / 0)

class Odd(Exception, metaclass=Nameless):
    pass

class Lies(Exception):
    __class__ = property(lambda self: 1 / 0)
    __traceback__ = __cause__ = __context__ = None

def with_(error, **fields):
    for name, value in fields.items():
        setattr(error, name, value)
    return error

def chain():
    first, second = ValueError("the cause"), ValueError("another")
    first.__cause__, second.__cause__ = second, first
    return first

def deep():
    error = last = ValueError("the cause")
    for n in range(3000):
        last.__context__ = KeyError(n)
        last = last.__context__
    return error
"""
ERRORS = {
    "its text raises": ('Refuses("the cause")', "Refuses: the cause"),
    "its text raises an interrupt": ('Interrupts("the cause")', "Interrupts: the cause"),
    "its text is no text": ('NoText("the cause", 7, object())', "NoText: the cause, 7, <object>"),
    "its text never comes": ('Hangs("the cause")', "Hangs: the cause"),
    "its text calls itself": ('Recursive("the cause")', "Recursive: the cause"),
    "its attributes raise": ('Hidden("the cause")', "Hidden: the cause"),
    "its class has no name": ('Odd("the cause")', "Odd: the cause"),
    "it lies about its class": ('Lies("the cause")', "Lies: the cause"),
    "half a character": (r'ValueError("the cause \ud800")', r"ValueError: the cause \ud800"),
    "a zero byte": (r'ValueError("the cause\0, and more")', r"ValueError: the cause\x00, and more"),
    "a message of 100 MB": ('ValueError("the cause\\n" + "x" * 100_000_000)', "ValueError: the cause"),
    "a line of 100 MB": ('ValueError("the cause" + "x" * 100_000_000)', "ValueError: the cause" + "x" * 491),
    "notes that are none": ('with_(ValueError("the cause"), __notes__=3)', "ValueError: the cause"),
    "notes that cannot be shown": ('with_(ValueError("the cause"), __notes__=[Refuses()])', "ValueError: the cause"),
    "causes in a circle": ("chain()", "ValueError: the cause"),
    "3,000 errors before it": ("deep()", "ValueError: the cause"),
    "a cause that cannot be shown": ('with_(ValueError("the cause"), __cause__=Hidden())', "ValueError: the cause"),
    "a syntax error of odd parts": ('SyntaxError("the cause", (3, "x", None, b"y"))', "SyntaxError"),
    "a group": (
        'ExceptionGroup("two", [ExceptionGroup("one", [ValueError("the cause")]), KeyError(1)])',
        "ValueError: the cause (ExceptionGroup and 1 more)",
    ),
    "no Exception": ('GeneratorExit("the cause")', "GeneratorExit: the cause"),
    "an interrupt that was raised": ('KeyboardInterrupt("the cause")', "KeyboardInterrupt: the cause"),
}
FIRST = 3 + CLASSES.count("\n")


def caught(program: str, tmp_path: Path) -> tuple[BaseException, CellMap]:
    """Return the exception that a program raises, and the lines of its cells."""
    script = tmp_path / "train.py"
    script.write_text(program)
    try:
        exec(compile(program, str(script), "exec"), {"__name__": "__main__"})
    except BaseException as error:  # noqa: BLE001 - of any class
        return error, CellMap(script, {"1-500": "cell [4]:1"})
    raise AssertionError("nothing was raised")


def line_of(failure: Failure) -> tuple[str, int] | None:
    return None if failure.where is None else (failure.where.label, failure.where.line)


@pytest.mark.parametrize("kind", ERRORS)
def test_unusual_exception_is_reported_with_class_message_and_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str
) -> None:
    monkeypatch.setattr(failure_report, "_FULL_S", 0.5 if kind == "its text never comes" else 60.0)
    made, said = ERRORS[kind]
    error, cells = caught(f"{CLASSES}\nraise {made}\n", tmp_path)

    with failure_report.calm():
        failure, text = failure_report.report(error, cells, tmp_path / "files")

    assert failure.what.startswith(said), failure
    assert line_of(failure) == ("cell [4]", FIRST - 1)
    assert failure.cause == Cause.YOUR_CODE
    assert len(text) < 50_000
    json.dumps(encode(failure), ensure_ascii=False).encode()  # as it is stored and sent


WRAPPED = """
def read(row):
    return row["label"]
def wrap(error):
    raise RuntimeError("no batch") from error
try:
    read({})
except KeyError as error:
    wrap(error)
"""


@pytest.mark.parametrize("wraps", [1, 2])
def test_error_raised_from_a_known_one_has_its_advice(tmp_path: Path, wraps: int) -> None:
    again = "" if wraps == 1 else "\ntry:\n" + indent(WRAPPED, " ") + "except RuntimeError as error:\n    wrap(error)\n"
    error, cells = caught(again or WRAPPED, tmp_path)

    failure, _ = failure_report.report(error, cells, tmp_path / "files")

    assert (failure.code, line_of(failure)) == ("key_missing", ("cell [4]", 3 if wraps == 1 else 5))
    assert failure.what == "RuntimeError: no batch (caused by KeyError: 'label')"


QUOTED = """
import traceback
def read(row):
    return row["label"]
try:
    read({})
except KeyError:
    raise RuntimeError("process 1 failed:\\n" + traceback.format_exc())
"""


def test_error_quoting_a_traceback_has_the_advice_of_that_one(tmp_path: Path) -> None:
    error, cells = caught(QUOTED, tmp_path)

    failure, _ = failure_report.report(error, cells, tmp_path / "files")

    assert (failure.code, line_of(failure)) == ("key_missing", ("cell [4]", 4))
    assert failure.what == "RuntimeError: process 1 failed: (caused by KeyError: 'label')"


def test_syntax_error_of_an_own_module_has_its_line(tmp_path: Path) -> None:
    own = tmp_path / "files"
    own.mkdir()
    (own / "helpers.py").write_text("def load(k):\n    return k k\n")
    error, cells = caught(f"import runpy\nrunpy.run_path({str(own / 'helpers.py')!r})\n", tmp_path)

    failure, _ = failure_report.report(error, cells, own)

    assert (failure.code, line_of(failure)) == ("syntax", ("helpers.py", 2))


def test_raised_warning_is_the_programs_own_error(tmp_path: Path) -> None:
    error, cells = caught("import warnings\nwarnings.simplefilter('error')\nwarnings.warn('x')\n", tmp_path)
    filtered, _ = failure_report.report(error, cells, tmp_path / "files")
    error, cells = caught("raise UserWarning('x')\n", tmp_path)
    raised, _ = failure_report.report(error, cells, tmp_path / "files")

    assert (filtered.code, raised.code) == ("warning_as_error", "your_code")


COMPILED = """RuntimeError when making fake tensor call
  Explanation: Dynamo failed to run FX node with fake tensors: call_function <built-in function linear>(*(), **{}): \
got RuntimeError('a and b must have same reduction dim, but got [3, 4] X [5, 2].')
  Hint: Your code may result in an error when running in eager.

from user code:
   File "SCRIPT", line 1, in forward
    return self.l(x)
  File "/usr/lib/torch/nn/modules/linear.py", line 134, in forward
    return F.linear(input, self.weight, self.bias)
"""


def test_error_in_a_compiled_model_has_message_and_line(tmp_path: Path) -> None:
    message = COMPILED.replace("SCRIPT", str(tmp_path / "train.py"))
    error, cells = caught(
        f"class TorchRuntimeError(RuntimeError): pass\n\nraise TorchRuntimeError({message!r})", tmp_path
    )

    failure, _ = failure_report.report(error, cells, tmp_path / "files")

    assert (failure.code, line_of(failure)) == ("matrix_sizes", ("cell [4]", 1))
    assert failure.what == (
        "TorchRuntimeError: RuntimeError('a and b must have same reduction dim, but got [3, 4] X [5, 2].')"
    )


def test_exception_group_of_one_is_reported_as_its_error(tmp_path: Path) -> None:
    program = "def fail():\n    raise ValueError('x')\ntry:\n    fail()\nexcept ValueError as error:\n"
    error, cells = caught(program + "    raise ExceptionGroup('tasks', [error])\n", tmp_path)

    failure, text = failure_report.report(error, cells, tmp_path / "files")

    assert failure.what == "ValueError: x (ExceptionGroup)"
    assert line_of(failure) == ("cell [4]", 2)
    assert "ExceptionGroup: tasks (1 sub-exception)" in text


def test_the_minimal_report_needs_nothing_that_a_program_can_change(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    error, cells = caught("def f():\n    raise MemoryError('no room')\n\nf()\n", tmp_path)

    def refuse(*_: object) -> Any:
        raise MemoryError

    monkeypatch.setattr(failure_report, "failure_of", refuse)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    failure, text = failure_report.report(error, cells, tmp_path / "files")

    assert (failure.what, failure.code) == ("MemoryError: no room", "host_memory")
    assert line_of(failure) == ("cell [4]", 2)
    assert text.endswith("cell [4], line 4\n  cell [4], line 2\nMemoryError: no room\n")


# -- in jobs -----------------------------------------------------------------------------------------------------------

PROGRAMS = {
    "closed streams": "import sys\nsys.stdout.close()\nsys.stderr.close()\nfail()",
    "closed descriptors": "import os\nos.close(1)\nos.close(2)\nfail()",
    "all descriptors closed": "import os\nos.closerange(0, 256)\nfail()",
    "no streams": "import sys\nsys.stdout = sys.stderr = sys.__stderr__ = None\nfail()",
    "a stream that raises": """
        import sys
        class Stream:
            def write(self, text):
                raise LookupError("not here")
        sys.stdout = sys.stderr = Stream()
        fail()
    """,
    "a full pipe as stream": """
        import os
        r, w = os.pipe()
        os.set_blocking(w, False)
        try:
            while True:
                os.write(w, bytes(512))
        except BlockingIOError:
            os.set_blocking(w, True)
        os.dup2(w, 2)
        fail()
    """,
    "a directory that is gone": "import os\nos.mkdir('gone')\nos.chdir('gone')\nos.rmdir('../gone')\nfail()",
    "other builtins": """
        import builtins
        builtins.print = builtins.isinstance = builtins.str = builtins.len = builtins.open = None
        fail()
    """,
    "no modules": "import sys\nfor name in list(sys.modules):\n    del sys.modules[name]\nfail()",
    "a hook of one's own": "import os, sys\nsys.excepthook = lambda *_: os._exit(7)\nfail()",
    "signals of one's own": """
        import signal
        def late(*_):
            raise TimeoutError("too late")
        signal.signal(signal.SIGALRM, late)
        class Slow(Exception):
            def __str__(self):
                import time
                time.sleep(0.3)
                return "the cause"
        signal.setitimer(signal.ITIMER_REAL, 0.15, 0.05)
        fail(Slow)
    """,
    "a trace function": "import sys\nsys.settrace(lambda *_: 1 / 0 if raised else None)\nfail()",
    "little room for calls": """
        import sys
        sys.setrecursionlimit(60)
        def again():
            again()
        try:
            again()
        except RecursionError:
            fail()
    """,
    "no memory": """
        import resource
        resource.setrlimit(resource.RLIMIT_AS, (900_000_000, 900_000_000))
        kept = []
        try:
            while True:
                kept.append(bytearray(1 << 20))
        except MemoryError:
            try:
                while True:
                    kept.append(bytearray(1 << 10))
            except MemoryError:
                fail()
    """,
    "no descriptor left": """
        import os, resource
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        kept = []
        try:
            while True:
                kept.append(open(os.devnull))
        except OSError:
            fail()
    """,
    "a disk that takes nothing": """
        import resource
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        fail()
    """,
    "threads that failed": """
        import threading
        def crash():
            raise OSError("in a thread")
        for _ in range(3):
            thread = threading.Thread(target=crash)
            thread.start()
            thread.join()
        fail()
    """,
}
FAIL = """raised = []
def fail(cls=ValueError):
    error = cls("the cause")
    raised.append(error)
    raise error
"""


@pytest.mark.parametrize("state", PROGRAMS)
def test_an_error_in_a_broken_process_is_reported(plain_job: Build, state: str) -> None:
    lines = PROGRAMS[state].rstrip().split("\n")
    width = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    one = plain_job(FAIL + "\n".join(line[width:] for line in lines) + "\n", cells={"1-50": "cell [4]:1"})
    one.run()

    failure = one.wait(FactKind.LOST).failure
    assert failure is not None, one.report()
    assert failure.what == ("Slow: the cause" if "Slow" in PROGRAMS[state] else "ValueError: the cause")
    assert line_of(failure) == ("cell [4]", 5)
    assert "the cause\n" in one.log() or state in ("a full pipe as stream", "a disk that takes nothing")


def test_a_hook_for_exceptions_is_called_as_in_a_script(plain_job: Build) -> None:
    one = plain_job(
        """
        import sys
        def hook(cls, error, tb):
            print("marked as failed:", cls.__name__, error, tb.tb_lineno > 0)
        sys.excepthook = hook
        raise ValueError("the cause")
        """
    )
    one.run()

    one.wait(FactKind.LOST)
    assert one.log().endswith("ValueError: the cause\nmarked as failed: ValueError the cause True\n")


THREAD = """
import threading
def prefetch():
    return {}["image"]
for _ in range(5):
    thread = threading.Thread(target=prefetch, name="loader")
    thread.start()
    thread.join()
"""


def test_error_that_ends_a_thread_is_a_note_in_cells(plain_job: Build) -> None:
    one = plain_job(THREAD, cells={"1-50": "cell [4]:1"})
    one.run()

    assert one.closed() == "completed"
    notes = [fact.note for fact in one.facts(FactKind.REPORT)]
    assert [note.text for note in notes] == [
        "Thread \"loader\" ended with an error in cell [4], line 4, in prefetch: KeyError: 'image'"
    ]
    assert one.log().count("Exception in thread loader:\nTraceback (most recent call last):\n") == 5
    assert "  cell [4], line 4, in prefetch\n" in one.log()


FORKS = {
    "it fails": ("{}['image']", "KeyError: 'image'\nexit code 1\n"),
    "it exits": ("sys.exit(3)", "exit code 3\n"),
    "it runs on to the end": ("pathlib.Path('go').touch()", "exit code 0\n"),
}


@pytest.mark.parametrize("kind", FORKS)
def test_a_forked_process_writes_no_result_of_the_learner(plain_job: Build, kind: str) -> None:
    act, said = FORKS[kind]
    one = plain_job(
        f"""
        import os, pathlib, sys
        pid = os.fork()
        if pid == 0:
            {act}
        else:
            print("exit code", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
            os.kill(os.getpid(), 9)
        """
    )
    one.run()

    failure = one.wait(FactKind.LOST).failure
    assert failure is not None
    assert failure.code == "killed"
    assert one.log().endswith(said)


def test_learner_that_finishes_early_is_named_by_the_others_failure(plain_job: Build) -> None:
    one = plain_job(
        """
        import os, pathlib, sys, time
        if os.environ["RANK"] == "1":
            sys.exit()
        while not pathlib.Path(os.environ["DLAAS_JOB_DIR"], "learner-1", "result.json").exists():
            time.sleep(0.01)
        raise ConnectionError("Connection closed by peer")
        """
    )
    one.run(2)

    failure = one.wait(FactKind.LOST).failure
    assert failure is not None
    assert failure.code == "peer_lost"
    assert failure.what.startswith("learner 1 finished while learner 0 still trained (ConnectionError: ")


def test_external_signal_is_reported_as_such(plain_job: Build) -> None:
    one = plain_job("import os, signal\nos.kill(os.getpid(), signal.SIGTERM)\n")
    one.run()

    failure = one.wait(FactKind.LOST).failure
    assert failure is not None
    assert (failure.code, failure.what) == ("terminated", "terminated from outside (SIGTERM)")


def test_signal_during_an_error_report_changes_nothing(plain_job: Build) -> None:
    one = plain_job(
        """
        import os, signal, time
        class Slow(Exception):
            def __str__(self):
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(0.2)
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(0.2)
                return "the cause"
        raise Slow
        """
    )
    one.run()

    failure = one.wait(FactKind.LOST).failure
    assert failure is not None
    assert failure.what == "Slow: the cause"


EXITS = {
    "sys.exit('no data')": (1, "sys.exit: no data"),
    "sys.exit('')": (1, "sys.exit: "),
    "sys.exit(256)": (1, "ended with exit code 256"),
    "sys.exit(-1)": (255, "ended with exit code -1"),
    "sys.exit(10**5000)": (1, "ended with exit code 1"),
    "sys.exit([1, 2])": (1, "sys.exit: [1, 2]"),
    "sys.exit(Refuses('x'))": (1, "sys.exit: <Refuses>"),
    "sys.exit(3)": (3, "ended with exit code 3"),
    "sys.exit(True)": (1, "ended with exit code 1"),
}


@pytest.mark.parametrize("ending", EXITS)
def test_exit_with_an_error_is_reported_with_its_line(tmp_path: Path, ending: str) -> None:
    error, cells = caught(f"{CLASSES}\nimport sys; {ending}\n", tmp_path)
    assert isinstance(error, SystemExit)

    code, failure, _ = failure_report.report_exit(error, cells, tmp_path / "files")

    assert not failure_report.is_success(error)
    assert (code, failure.what, failure.code) == (*EXITS[ending], "exit_code")
    assert line_of(failure) == ("cell [4]", FIRST - 1)


def test_argparse_that_refuses_a_notebooks_arguments_has_advice(tmp_path: Path) -> None:
    error, cells = caught("import argparse\nargparse.ArgumentParser().parse_args(['-f', 'kernel.json'])\n", tmp_path)
    assert isinstance(error, SystemExit)

    code, failure, _ = failure_report.report_exit(error, cells, tmp_path / "files")

    assert (code, failure.code, failure.what) == (2, "program_arguments", "ended with exit code 2")
    assert "parse_args([])" in failure.advice


@pytest.mark.parametrize("code", [None, 0, False])
def test_a_program_may_end_itself_well(code: Any) -> None:
    assert failure_report.is_success(SystemExit(code))


def test_report_does_not_wait_for_endless_code() -> None:
    began_s = time.monotonic()

    assert failure_report._within(0.1, threading.Event().wait) is None

    assert time.monotonic() - began_s < 30.0
