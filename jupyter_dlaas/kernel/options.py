"""Line of `%%train`: parsed into options of `dlaas.submit` and options of the magic itself."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from IPython.core.error import UsageError
from IPython.core.getipython import get_ipython
from IPython.core.magic_arguments import argument, argument_group, kwds

from jupyter_dlaas.api import option_parsing
from jupyter_dlaas.wire.codec import DlaasError, Invalid
from jupyter_dlaas.wire.protocol import NAME_PATTERN

__all__ = ["NotDone", "NotSubmitted", "TrainLine", "parse", "train_options"]

F = TypeVar("F", bound=Callable[..., Any])


class NotDone(Exception):
    """Error of a magic. The notebook shows its sentences without a traceback."""

    def __init__(self, *sentences: str) -> None:
        super().__init__("\n".join(sentences))
        self.sentences = sentences

    def _render_traceback_(self) -> list[str]:
        _suspend_debugger()
        return str(self).splitlines()


def _suspend_debugger() -> None:
    """Keep `%pdb on` from opening the debugger for the present cell: the error is not in the user's code."""
    shell = get_ipython()
    if shell is None or not shell.call_pdb:
        return

    def restore(*_: object) -> None:
        shell.events.unregister("post_run_cell", restore)
        shell.call_pdb = True

    shell.events.register("post_run_cell", restore)
    shell.call_pdb = False


class NotSubmitted(NotDone):
    """Refusal of `%%train` to start a job. Each problem names the thing, its place and the fix."""

    def __init__(self, problems: Sequence[str]) -> None:
        errors = "1 error" if len(problems) == 1 else f"{len(problems)} errors"
        super().__init__(f"Not submitted: {errors} to fix first.", *(f"- {problem}" for problem in problems))
        self.problems = tuple(problems)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainLine:
    """Parsed line of `%%train`. `options` are passed on to `dlaas.submit` and contain only what was given."""

    options: Mapping[str, Any]
    outputs: tuple[str, ...] = ()
    push: tuple[str, ...] = ()
    with_cells: tuple[int, ...] = ()
    learners_max: int = 1
    is_dry_run: bool = False
    is_suggestion: bool = False
    is_waited_for: bool = False


_SIZE: Final = (
    argument(
        "--gpus",
        metavar="N|MIN:MAX",
        help="number of GPUs, one learner each (CPU slots in a pool without GPUs; 0 for none)",
    ),
    argument("--learners", metavar="N|MIN:MAX", help="number of learners (training processes)"),
    argument("--gpus-per-learner", metavar="K", help="GPUs per learner (default: 1)"),
    argument("--cpus", metavar="N", help="CPUs per learner, such as 2 or 0.5"),
    argument("--memory", metavar="8G", help="memory per learner; a learner that exceeds it fails"),
    argument("--gpu-kind", metavar="KIND", help="require GPUs whose name contains this text"),
    argument(
        "--placement", metavar="pack|spread", help="placement of the learners on nodes (default: the pool's setting)"
    ),
    argument(
        "--elastic",
        metavar="off|manual|auto",
        help="what may resize the running job: nothing (off), your requests (manual, default), "
        "or measured speed (auto:efficiency=0.2)",
    ),
    argument(
        "--schedule", metavar="'epoch 30: 4 gpus'", action="append", help="resize the job at the start of these epochs"
    ),
)
_SCHEDULING: Final = (
    argument("--priority", metavar="low|normal|high|INT", help="higher priorities start first"),
    argument(
        "--queue",
        metavar="QUEUE",
        help="queue whose share the job's devices count against (default: the queue `default`)",
    ),
    argument(
        "--spot",
        action="store_true",
        help="use only idle devices, at a lower weight, and return them when ordinary jobs need them",
    ),
    argument("--max-time", metavar="2h", help="halt the job with a checkpoint after this much training time"),
    argument(
        "--hang-after",
        metavar="10m",
        help="end a learner that makes no progress for this long (default: 30s, or ten steps if that is longer)",
    ),
    argument("--retries", metavar="N", help="restarts after failures that may be transient (default: 4)"),
    argument("--checkpoint-every", metavar="60s", help="time between checkpoints (default: 60s)"),
)
_INPUTS_AND_RESULTS: Final = (
    argument(
        "-o", "--outputs", metavar="NAMES", action="append", help="variables to return to the notebook: model,history"
    ),
    argument("--push", metavar="NAMES", action="append", help="variables to send to the job with their current values"),
    argument(
        "--include",
        metavar="PATH",
        action="append",
        help="a file or folder to send with the job; relative to the working directory",
    ),
    argument("--with-cell", metavar="N", action="append", help="run all of cell [N] again in the job"),
    argument("-e", "--env", metavar="K=V", action="append", help="an environment variable for the job"),
    argument(
        "--secret", metavar="NAME", action="append", help="an environment variable to send with the job, masked in logs"
    ),
)
_FRAMEWORK_AND_METRICS: Final = (
    argument(
        "--framework",
        metavar="NAME",
        help="training framework: torch, jax or tensorflow (default: detected from the imports)",
    ),
    argument("--epochs", metavar="N", help="number of epochs, for progress and estimates"),
    argument("--metric", metavar="REGEX", action="append", help="read a metric from printed lines: 'loss: ([0-9.]+)'"),
    argument(
        "--autolog",
        metavar="on|off",
        help="read metrics from frameworks, progress bars and printed lines (default: on)",
    ),
)
_SUBMISSION: Final = (
    argument(
        "--dry-run",
        action="store_true",
        help="show the program, the files sent with it and the start estimate, without submitting",
    ),
    argument(
        "--suggest", action="store_true", help="show the changes that would make the loop elastic, without submitting"
    ),
    argument(
        "--wait", action="store_true", help="follow states and log here; an interrupt detaches, the job keeps running"
    ),
)
_EXAMPLES: Final = """\
Examples:
  %%train digits                                the cell as a job
  %%train digits --gpus 1:4 -o model,history    elastic; returns two variables
  %%train digits --dry-run                      only show what would be sent
  %%train --suggest                             only show how to make the loop elastic
For scripts: dlaas.submit?"""
_UNAVAILABLE: Final[Mapping[str, tuple[str, str]]] = {
    "data": ("NAME=URL", "Load the data in a cell, or send files with --include PATH."),
    "image": ("IMAGE", "Omit it: the job runs in this kernel's own environment."),
    "preflight": ("", "--dry-run checks the cell and the pool without starting anything."),
}
_UNAVAILABLE_VALUES: Final[Mapping[tuple[str, str], str]] = {
    ("placement", "topology"): "--placement pack places the learners on as few nodes as possible.",
}


def train_options(function: F) -> F:
    """Declare all options of `%%train` for `IPython.core.magic_arguments`."""
    later = [
        argument(f"--{name}", help=argparse.SUPPRESS, **({"metavar": metavar} if metavar else {"action": "store_true"}))
        for name, (metavar, _) in _UNAVAILABLE.items()
    ]
    groups = (
        (argument_group("size"), *_SIZE),
        (argument_group("scheduling"), *_SCHEDULING),
        (argument_group("inputs and results"), *_INPUTS_AND_RESULTS),
        (argument_group("framework and metrics"), *_FRAMEWORK_AND_METRICS),
        (argument_group("submission"), *_SUBMISSION, *later),
    )
    name = argument("name", nargs="?", help="name of the job (default: the notebook's)")
    for decorator in reversed([kwds(epilog=_EXAMPLES), name, *(entry for group in groups for entry in group)]):
        function = decorator(function)
    return function


def parse(parser: argparse.ArgumentParser, line: str, *, where: str = "%%train") -> TrainLine:
    """Parse a line. Raises NotSubmitted with one sentence: the error, its place and the fix."""
    words: list[str] = []
    try:
        words = shlex.split(line)
        divided = option_parsing.list_with_space(words)
        if divided is not None:
            raise Invalid(divided)
        return _read(vars(parser.parse_args(words)))
    except UsageError as error:
        raise NotSubmitted([f"{where}: {_usage(parser, str(error), words)}"]) from None
    except ValueError as error:  # of shlex
        raise NotSubmitted([f"{where}: {option_parsing.quoting(error)}."]) from None
    except DlaasError as error:
        raise NotSubmitted([f"{where}: {error}"]) from None


def _read(given: dict[str, Any]) -> TrainLine:
    for name, (_, instead) in _UNAVAILABLE.items():
        if given.pop(name):
            raise Invalid(f"--{name} is not available yet. {instead}")
    for (name, value), instead in _UNAVAILABLE_VALUES.items():
        if given[name] == value:
            raise Invalid(f"--{name} {value} is not available yet. {instead}")
    if given["name"] is not None and not re.fullmatch(NAME_PATTERN, given["name"]):
        raise Invalid(
            f"{given['name']!r} is not a valid job name: use letters, digits, _ and -, starting with a letter"
        )
    outputs = option_parsing.names(",".join(given.pop("outputs") or ()), option="-o")
    push = option_parsing.names(",".join(given.pop("push") or ()), option="--push")
    with_cells = tuple(
        option_parsing.count(number, option="--with-cell")
        for number in re.split(r"[ ,]+", ",".join(given.pop("with_cell") or ()))
        if number
    )
    is_dry_run, is_suggestion, is_waited_for = given.pop("dry_run"), given.pop("suggest"), given.pop("wait")
    options = {name: value for name, value in given.items() if value is not None and value is not False}
    if "cpus" in options:
        options["cpus"] = _number(options["cpus"])
    size = option_parsing.sizes(options.get("gpus"), options.get("learners"), options.get("gpus_per_learner"))
    option_parsing.elastic(options.get("elastic", "manual"))
    option_parsing.schedule(options.get("schedule"), size.gpus_per_learner)
    return TrainLine(
        options=options,
        outputs=outputs,
        push=push,
        with_cells=with_cells,
        learners_max=size.learners_max,
        is_dry_run=is_dry_run,
        is_suggestion=is_suggestion,
        is_waited_for=is_waited_for,
    )


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise Invalid(f"cpus: {text!r} is not a number; use 2 or 0.5") from None


def _usage(parser: argparse.ArgumentParser, message: str, words: Sequence[str]) -> str:
    """Format argparse's error, with the closest option."""
    ambiguous = option_parsing.ambiguous_argument(message)
    if ambiguous is not None:
        return ambiguous
    unknown = re.search(r"unrecognized arguments: (\S+)", message)
    if unknown is None:
        return f"{message}. For all options: %%train?"
    return option_parsing.unknown_argument(
        unknown[1], parser._option_string_actions, help_command="%%train?", words=words
    )
