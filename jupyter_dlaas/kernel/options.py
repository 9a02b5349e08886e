"""The line of `%%train`: what may stand on it, read into options of `dlaas.submit` and wishes of the magic alone."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from IPython.core.error import UsageError
from IPython.core.magic_arguments import argument, argument_group

from jupyter_dlaas.api import option_parsing
from jupyter_dlaas.wire.codec import DlaasError, Invalid
from jupyter_dlaas.wire.protocol import NAME_PATTERN

__all__ = ["NotDone", "NotSubmitted", "TrainLine", "parse", "train_options"]

F = TypeVar("F", bound=Callable[..., Any])


class NotDone(Exception):
    """What a magic could not do, in sentences. A notebook shows these alone, without a traceback of ours."""

    def __init__(self, *sentences: str) -> None:
        super().__init__("\n".join(sentences))
        self.sentences = sentences

    def _render_traceback_(self) -> list[str]:
        return str(self).splitlines()


class NotSubmitted(NotDone):
    """`%%train` refuses to start a job; each problem says what, where and what to do."""

    def __init__(self, problems: Sequence[str]) -> None:
        things = "1 thing" if len(problems) == 1 else f"{len(problems)} things"
        super().__init__(f"Not submitted: {things} to fix first.", *(f"- {one}" for one in problems))
        self.problems = tuple(problems)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainLine:
    """A line of `%%train`. `options` go to `dlaas.submit` as they stand; only what was typed is in there."""

    options: Mapping[str, Any]
    outputs: tuple[str, ...] = ()
    push: tuple[str, ...] = ()
    with_cells: tuple[int, ...] = ()
    learners_max: int = 1
    is_dry_run: bool = False
    is_suggestion: bool = False
    is_waited_for: bool = False


_SIZE: Final = (
    argument("--gpus", metavar="N|MIN:MAX", help="GPUs, a learner each; CPU slots where there is no GPU; 0 for none"),
    argument("--learners", metavar="N|MIN:MAX", help="training processes, where they are not one GPU each"),
    argument("--gpus-per-learner", metavar="K", help="for learners that take more than one"),
    argument("--cpus", metavar="N", help="CPUs per learner"),
    argument("--memory", metavar="8G", help="memory per learner"),
    argument("--gpu-kind", metavar="KIND", help="insist on GPUs whose name holds this"),
    argument(
        "--placement", metavar="pack|spread", help="learners close together, or apart (default: as the pool does)"
    ),
    argument(
        "--elastic",
        metavar="off|manual|auto",
        help="who changes its size while it runs: nobody, you (default), or how fast it is (auto:efficiency=0.2)",
    ),
    argument("--schedule", metavar="'epoch 30: 4 gpus'", action="append", help="sizes by epoch"),
)
_TURN: Final = (
    argument("--priority", metavar="low|normal|high|INT", help="higher goes first"),
    argument("--queue", metavar="QUEUE", help="the queue that it waits in (default: default)"),
    argument(
        "--spot", action="store_true", help="take only what is idle, count less, give it back when others need it"
    ),
    argument("--max-time", metavar="2h", help="halt it, with a checkpoint, after training for so long"),
    argument(
        "--hang-after",
        metavar="10m",
        help="end a learner that does nothing for so long (default: 30s or ten steps, in loops of steps)",
    ),
    argument("--retries", metavar="N", help="how often it may start again after a failure"),
    argument("--checkpoint-every", metavar="60s", help="how often its state is saved"),
)
_CARGO: Final = (
    argument("-o", "--outputs", metavar="NAMES", action="append", help="bring these back: model,history"),
    argument("--push", metavar="NAMES", action="append", help="send today's values of these, as they are here"),
    argument("--include", metavar="PATH", action="append", help="a file or folder that the job needs"),
    argument("--with-cell", metavar="N", action="append", help="run all of cell [N] again in the job"),
    argument("-e", "--env", metavar="K=V", action="append", help="a variable of the job's environment"),
    argument("--secret", metavar="NAME", action="append", help="a variable of this kernel, masked in logs and reports"),
)
_TOLD: Final = (
    argument("--framework", metavar="NAME", help="torch, jax, tensorflow (default: found from the imports)"),
    argument("--epochs", metavar="N", help="how many there will be, for the progress bar"),
    argument("--metric", metavar="REGEX", action="append", help="read a metric from printed lines: 'loss: ([0-9.]+)'"),
    argument("--autolog", metavar="on|off", help="on (default): curves from frameworks, progress bars and prints"),
)
_HOW: Final = (
    argument("--dry-run", action="store_true", help="show the program, what would go with it, the estimate; and stop"),
    argument("--suggest", action="store_true", help="show the lines that would let it grow and shrink; and stop"),
    argument("--wait", action="store_true", help="show states and log here; an interrupt detaches, the job goes on"),
)
_LATER: Final[Mapping[str, tuple[str, str]]] = {
    "data": ("NAME=URL", "Load the data in a cell, or take files along: --include PATH."),
    "image": ("IMAGE", "Leave it out: the job runs in this kernel's own environment."),
    "preflight": ("", "--dry-run checks the cell and the pool without starting anything."),
}
_LATER_VALUES: Final[Mapping[tuple[str, str], str]] = {
    ("placement", "topology"): "--placement pack puts the learners on as few nodes as it can.",
}


def train_options(function: F) -> F:
    """All options of `%%train`, for `IPython.core.magic_arguments`."""
    later = [
        argument(f"--{name}", help=argparse.SUPPRESS, **({"metavar": metavar} if metavar else {"action": "store_true"}))
        for name, (metavar, _) in _LATER.items()
    ]
    groups = (
        (argument_group("size"), *_SIZE),
        (argument_group("turn and time"), *_TURN),
        (argument_group("what goes and comes back"), *_CARGO),
        (argument_group("what the job is told"), *_TOLD),
        (argument_group("how to submit"), *_HOW, *later),
    )
    name = argument("name", nargs="?", help="the job's name (default: the notebook's)")
    for one in reversed([name, *(one for group in groups for one in group)]):
        function = one(function)
    return function


def parse(parser: argparse.ArgumentParser, line: str, *, where: str = "%%train") -> TrainLine:
    """Read a line. Raises NotSubmitted with one sentence: what is wrong, where it stands, what to type."""
    try:
        given = vars(parser.parse_args(shlex.split(line)))
        return _read(given)
    except UsageError as error:
        raise NotSubmitted([f"{where}: {_usage(parser, str(error))}"]) from None
    except ValueError as error:  # shlex: quotes that are not closed
        raise NotSubmitted([f"{where}: {str(error).lower()}; close the quotes, or take them away."]) from None
    except DlaasError as error:
        raise NotSubmitted([f"{where}: {error}"]) from None


def _read(given: dict[str, Any]) -> TrainLine:
    for name, (_, instead) in _LATER.items():
        if given.pop(name):
            raise Invalid(f"--{name} is not available yet. {instead}")
    for (name, value), instead in _LATER_VALUES.items():
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
        raise Invalid(f"cpus: {text!r} is no number; write 2 or 0.5") from None


def _usage(parser: argparse.ArgumentParser, said: str) -> str:
    """What argparse says, and the option that was perhaps meant."""
    unknown = re.search(r"unrecognized arguments: (\S+)", said)
    if unknown is None:
        return f"{said}. All options: %%train?"
    return option_parsing.not_known(unknown[1], parser._option_string_actions, else_see="%%train?")
