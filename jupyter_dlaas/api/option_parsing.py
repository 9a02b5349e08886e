"""Parsers of option values: "1:4", "8G", "2h", "high", "model,history", "K=V". Standard library only.

The magics, the command line and `dlaas.submit` share them, so that values and errors are the same everywhere. An error
(`Invalid`) names the option, the given value and a correct one.
"""

from __future__ import annotations

import ast
import difflib
import os
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

from jupyter_dlaas.wire.codec import Invalid
from jupyter_dlaas.wire.protocol import Condition, Elastic, Scheduled
from jupyter_dlaas.wire.secret_masking import NAMED_LENGTH_MIN

__all__ = [
    "PRIORITIES",
    "Sizes",
    "Sizing",
    "ambiguous_argument",
    "bounds",
    "count",
    "directory",
    "duration_s",
    "elastic",
    "environment",
    "framework",
    "framework_of",
    "interpreter",
    "job_name",
    "list_with_space",
    "memory_bytes",
    "metric_patterns",
    "names",
    "on_off",
    "path",
    "priority",
    "quoting",
    "schedule",
    "secrets",
    "sizes",
    "unknown_argument",
    "whole",
    "without_jupyter",
]

PRIORITIES: Final[Mapping[str, int]] = {"low": -100, "normal": 0, "high": 100}
_DURATION_S: Final[Mapping[str, float]] = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}
_BYTES: Final[Mapping[str, int]] = {
    "": 1,
    "B": 1,
    **{letter + tail: 1024**n for n, letter in enumerate("KMGTP", 1) for tail in ("", "i", "iB")},
    **{letter + "B": 1000**n for n, letter in enumerate("KMGTP", 1)},
}
_LIST_OPTIONS: Final = frozenset({"-o", "--outputs", "--push", "--with-cell", "--secret"})
"""Options whose value is a list, separated by commas."""
_FRAMEWORKS: Final[Mapping[str, str]] = {
    "torch": "torch",
    "pytorch_lightning": "torch",
    "lightning": "torch",
    "transformers": "torch",
    "jax": "jax",
    "flax": "jax",
    "optax": "jax",
    "equinox": "jax",
    "tensorflow": "tensorflow",
    "keras": "tensorflow",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Bounds for the number of learners of a job, and the devices per learner."""

    learners_min: int
    learners_max: int
    gpus_per_learner: int


def whole(text: int | str, *, option: str, minimum: int = 0) -> int:
    """Parse a whole number of at least `minimum`."""
    if isinstance(text, bool) or not re.fullmatch(r"\s*[+-]?\d{1,15}\s*", str(text)):
        raise Invalid(f"{option}: {text!r} is not a whole number")
    value = int(text)
    if value < minimum:
        raise Invalid(f"{option}: {value} is too small; the minimum is {minimum}")
    return value


def count(text: int | str, *, option: str) -> int:
    """Parse a whole number of at least 1."""
    return whole(text, option=option, minimum=1)


def bounds(text: int | str | tuple[int, int], *, option: str, minimum: int = 1) -> tuple[int, int]:
    """Parse a range: "4" is (4, 4), "1:4" is (1, 4); a pair of numbers is also accepted."""
    if isinstance(text, tuple | list):
        if len(text) != 2:
            raise Invalid(f"{option}: {text!r} is not valid; use a number or a pair (MIN, MAX)")
        low, high = (whole(bound, option=option, minimum=minimum) for bound in text)
    else:
        parts = str(text).split(":")
        if len(parts) > 2 or not all(re.fullmatch(r"\s*\d{1,15}\s*", part) for part in parts):
            raise Invalid(f"{option}: {text!r} is not valid; use N or MIN:MAX, such as 2 or 1:4")
        low, high = (whole(part, option=option, minimum=minimum) for part in (parts[0], parts[-1]))
    if low > high:
        raise Invalid(f"{option}: minimum {low} exceeds maximum {high}; use {high}:{low}")
    return low, high


def sizes(
    gpus: int | str | tuple[int, int] | None = None,
    learners: int | str | tuple[int, int] | None = None,
    gpus_per_learner: int | str | None = None,
) -> Sizes:
    """Parse the requested size of a job.

    `gpus` counts devices, one per learner (or `gpus_per_learner`, which must divide both bounds); "0" means one
    learner without a device. `learners` counts training processes. The default is one learner with one device.
    """
    if gpus is not None and learners is not None:
        raise Invalid("gpus: set either gpus or learners, not both")
    each = None if gpus_per_learner is None else whole(gpus_per_learner, option="gpus per learner")
    if gpus is None:
        low, high = bounds(1 if learners is None else learners, option="learners")
        return Sizes(learners_min=low, learners_max=high, gpus_per_learner=1 if each is None else each)
    low, high = bounds(gpus, option="gpus", minimum=0)
    if high == 0:
        if each:
            raise Invalid(f"gpus: 0 contradicts {each} GPUs per learner; omit one of them")
        return Sizes(learners_min=1, learners_max=1, gpus_per_learner=0)
    if low == 0:
        raise Invalid(f"gpus: the minimum is 1; use 1:{high}. To release all devices, halt the job")
    if each == 0:
        raise Invalid(
            f"gpus: {gpus} contradicts 0 GPUs per learner; for learners without GPUs, set learners instead of gpus"
        )
    each = each or 1
    if low % each or high % each:
        given = f"{low} is not a multiple" if low == high else f"{low}:{high} are not multiples"
        lower, upper = max(low // each, 1) * each, -(-high // each) * each
        fitting = str(upper) if low == high else f"{lower}:{upper}"
        raise Invalid(f"gpus: {given} of the {each} GPUs per learner; use {fitting}")
    return Sizes(learners_min=low // each, learners_max=high // each, gpus_per_learner=each)


def memory_bytes(text: int | str, *, option: str = "memory", minimum: int = 0) -> int:
    """Parse a memory size in bytes: "8G", "8GiB" (both 8 × 2^30), "8GB" (8 × 10^9), "512M", or a number of bytes."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", str(text))
    unit = None if match is None else _unit(match[2])
    if match is None or unit is None:
        raise Invalid(f"{option}: {text!r} is not a memory size; use 8G or 512M")
    size = int(float(match[1]) * unit)
    if 0 < size < minimum:
        raise Invalid(f"{option}: {text!r} is only {size} bytes; use a unit, such as 8G or 512M")
    return size


def _unit(text: str) -> int | None:
    return _BYTES.get(text[:1].upper() + text[1:].replace("I", "i").replace("b", "B"))


def duration_s(text: float | str, *, option: str = "time", minimum_s: float = 0.0) -> float:
    """Parse a duration in seconds: "2h", "1h30m", "90 min", "45s", "1d 12h", or a number of seconds."""
    value = str(text).strip().lower()
    parts = re.findall(r"(\d+(?:\.\d+)?)\s*(min|[smhd])", value)
    if re.fullmatch(r"\d+(\.\d+)?", value):
        seconds = float(value)
    elif not parts or re.sub(r"(\d+(?:\.\d+)?)\s*(min|[smhd])", "", value).strip():
        raise Invalid(f"{option}: {text!r} is not a duration; use 45s, 30m, 2h or 1h30m")
    else:
        seconds = sum(float(number) * _DURATION_S[unit] for number, unit in parts)
    if seconds < minimum_s:
        raise Invalid(f"{option}: {text!r} is too short; the minimum is {minimum_s:g}s")
    return seconds


def priority(text: int | str) -> int:
    """Parse a priority: low, normal, high or a whole number; jobs with a higher number start first."""
    value = str(text).strip().lower()
    if value in PRIORITIES:
        return PRIORITIES[value]
    if not re.fullmatch(r"[+-]?\d{1,7}", value):
        raise Invalid(f"priority: {text!r} is not valid; use low, normal, high or a whole number")
    return int(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizing:
    """Policy that may resize a running job, with its condition."""

    elastic: Elastic
    condition: Condition = Condition.EFFICIENCY
    condition_value: float | None = None
    price_per_h: float = 1.0


def elastic(text: str) -> Sizing:
    """Parse "off", "manual", "auto", or auto with a condition: "auto:efficiency=0.2", "auto:utility=12,price=2",
    "auto:deadline=2h", "auto:goodput".
    """
    policy, colon, condition = str(text).strip().lower().partition(":")
    if policy not in set(Elastic) or (colon and policy != "auto"):
        raise Invalid(
            f"elastic: {text!r} is not valid; use off, manual, auto or auto:CONDITION, such as auto:efficiency=0.2"
        )
    if not colon:
        return Sizing(elastic=Elastic(policy))
    name, _, rest = condition.partition("=")
    if name not in set(Condition):
        raise Invalid(f"elastic: unknown condition {name!r}; use one of {', '.join(Condition)}")
    value, _, more = rest.partition(",")
    price = re.fullmatch(r"price=(.+)", more) if more else None
    if more and (price is None or name != Condition.UTILITY):
        raise Invalid(f"elastic: unexpected {more!r} after {name}; use auto:utility=12,price=2")
    if not value and name in (Condition.UTILITY, Condition.DEADLINE):
        example = "auto:utility=12" if name == Condition.UTILITY else "auto:deadline=2h"
        raise Invalid(f"elastic: {name} needs a value, such as {example}")
    number = None
    if value:
        is_time = name == Condition.DEADLINE
        number = duration_s(value, option="elastic: deadline") if is_time else _positive(value, f"elastic: {name}")
    return Sizing(
        elastic=Elastic.AUTO,
        condition=Condition(name),
        condition_value=number,
        price_per_h=1.0 if price is None else _positive(price[1], "elastic: price"),
    )


def _positive(text: str, option: str) -> float:
    if not re.fullmatch(r"\d+(\.\d+)?", text):
        raise Invalid(f"{option}: {text!r} is not a number; use 2 or 0.5")
    return float(text)


def schedule(text: str | Iterable[str] | None, gpus_per_learner: int = 1) -> tuple[Scheduled, ...]:
    """Parse sizes by epoch: "epoch 30: 4 gpus", several separated by commas, or a list. "learners" counts processes."""
    parts = [part for entry in texts(text, option="schedule") for part in entry.split(",") if part.strip()]
    entries: list[Scheduled] = []
    for part in parts:
        read = re.fullmatch(r"\s*epoch\s+(\d{1,9})\s*:\s*(\d{1,6})\s*(gpu|cpu|slot|learner)?s?\s*", part.lower())
        if read is None:
            raise Invalid(
                f"schedule: {part.strip()!r} is not valid; use 'epoch 30: 4 gpus', several separated by commas"
            )
        epoch, number, unit = int(read[1]), int(read[2]), read[3]
        each = 1 if unit == "learner" else max(gpus_per_learner, 1)
        if number % each or not number:
            raise Invalid(f"schedule: {part.strip()!r}: each learner uses {each} GPUs; use a multiple of {each}")
        entries.append(Scheduled(epoch=epoch, learners=number // each))
    return tuple(sorted(entries, key=lambda entry: entry.epoch))


def on_off(text: bool | str, *, option: str) -> bool:
    """Parse a switch: "on", "off", or a boolean."""
    value = str(text).strip().lower()
    if value in ("on", "true"):
        return True
    if value in ("off", "false"):
        return False
    raise Invalid(f"{option}: {text!r} is not valid; use on or off")


def unknown_argument(word: str, options: Iterable[str], *, help_command: str, words: Sequence[str] = ()) -> str:
    """Format the error about an unknown argument, with the closest option or the command that lists all options.

    `words`: all arguments. In `-o model history` the unknown one belongs to the list before it.
    """
    for option, value, after in zip(words, words[1:], words[2:], strict=False):
        if after == word and option in _LIST_OPTIONS and not word.startswith("-"):
            return f"unexpected argument: {word}. Separate the entries of a list by commas: {option} {value},{word}"
    known = [option for option in options if option.startswith("--")]
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.65)
    if word.startswith("-") and close:
        return f"unknown option {word}. Did you mean {close[0]}?"
    kind = "unknown option" if word.startswith("-") else "unexpected argument:"
    return f"{kind} {word}. For all options: {help_command}"


def list_with_space(words: Sequence[str]) -> str | None:
    """Return the error about a list that a space divides into several arguments, as in `-o model, history`.

    Otherwise `history` would be taken for another argument, such as the name of the job.
    """
    parts = [part for word in words for part in _option_and_value(word)]
    for at, option in enumerate(parts):
        if option not in _LIST_OPTIONS or at + 1 == len(parts):
            continue
        joined, *rest = parts[at + 1 :]
        divided = joined
        for part in rest:
            if part.startswith("-") or not (joined.endswith(",") or part.startswith(",")):
                break
            joined, divided = joined + part, f"{divided} {part}"
        if joined != divided:
            return f"{option}: remove the spaces from the list {divided!r}: {option} {joined}"
    return None


def _option_and_value(word: str) -> tuple[str, ...]:
    """Split `--push=model` and `-omodel` as argparse does."""
    option, equals, value = word.partition("=")
    if equals and option in _LIST_OPTIONS:
        return option, value
    if re.match(r"-o[^-]", word):
        return "-o", word[2:]
    return (word,)


def ambiguous_argument(message: str) -> str | None:
    """Return the error about an option that argparse found ambiguous, with the closest one; None for other errors.

    `--gpu` is a prefix of three options; the reader means `--gpus`.
    """
    found = re.match(r"ambiguous option: (\S+) could match (.+)", message)
    if found is None:
        return None
    word, matches = found[1].partition("=")[0], found[2].split(", ")
    close = difflib.get_close_matches(word, matches, n=1, cutoff=0.8)
    return f"unknown option {word}. Did you mean {close[0] if close else _either(matches)}?"


def _either(words: Sequence[str]) -> str:
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def quoting(error: ValueError) -> str:
    """Format the error of `shlex.split` about a line of options."""
    if "quotation" in str(error):
        return "a quotation mark is not closed; close or remove it"
    return "the line ends with a backslash; remove it"


def metric_patterns(given: str | Iterable[str] | None, *, option: str = "metric") -> tuple[str, ...]:
    """Parse the regular expressions that read metrics from printed lines."""
    patterns = texts(given, option=option)
    for pattern in patterns:
        example = "such as 'loss: ([0-9.]+)'"
        try:
            re.compile(pattern)
        except (re.error, RecursionError, OverflowError) as error:
            raise Invalid(f"{option}: {pattern!r} is not a regular expression ({error}); use one {example}") from None
        if re.fullmatch(r"[\w\s:=,-]*", pattern) and not re.search(r"\d", pattern):
            raise Invalid(f"{option}: {pattern!r} matches no number; use a pattern with a group for it, {example}")
    return patterns


def framework(text: str) -> str:
    """Parse a training framework: torch, jax or tensorflow; names of libraries on top of them are also accepted."""
    value = "".join(texts(text, option="framework")).strip().lower()
    known = {**_FRAMEWORKS, "pytorch": "torch", "tf": "tensorflow"}
    if value not in known:
        raise Invalid(f"framework: {text!r} is not valid; use torch, jax or tensorflow, or omit it")
    return known[value]


def texts(given: object, *, option: str) -> tuple[str, ...]:
    """Return the texts of an option that is given as one text or several. Raises Invalid for other types."""
    if given is None or isinstance(given, str):
        return () if given is None else (given,)
    entries: tuple[object, ...] = (given,)
    if isinstance(given, Iterable) and not isinstance(given, Mapping | bytes):
        entries = tuple(given)
    for entry in entries:
        if not isinstance(entry, str):
            raise Invalid(f"{option}: expected text, but got a value of type {type(entry).__name__}")
    return cast("tuple[str, ...]", entries)


def cpus(given: float | str | None) -> float:
    """Parse the number of CPUs of a learner; None is 0, no request. Fractions are allowed."""
    try:
        return 0.0 if given is None else float(given)
    except (TypeError, ValueError, OverflowError):
        raise Invalid(f"cpus: {given!r} is not a number; use 2 or 0.5") from None


def path(given: str | Path, *, option: str, base: Path | None = None) -> Path:
    """Parse a path, relative to `base`; `~` is the home directory. Without `base`, a relative path stays relative."""
    if not isinstance(given, str | os.PathLike):
        raise Invalid(f"{option}: expected a path, but got a value of type {type(given).__name__}")
    try:
        found = (base or Path()) / Path(given).expanduser()
        with suppress(FileNotFoundError, NotADirectoryError):  # reported where the path is opened
            found.stat()
    except (OSError, RuntimeError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise Invalid(f"{option}: {str(given)[:200]!r} cannot be used: {reason}") from None
    return found


def directory(given: str | Path | None, *, option: str = "directory") -> Path:
    """Return the absolute path of an existing directory; None is the current one."""
    try:
        found = Path.cwd() / path(given or ".", option=option)
    except FileNotFoundError:
        raise Invalid(f"{option}: the current directory was deleted; change to another one") from None
    if not found.exists():
        raise Invalid(f"{option}: {found} does not exist; create it, or use an existing directory")
    if not found.is_dir():
        raise Invalid(f"{option}: {found} is not a directory; use {found.parent}")
    return found


def interpreter(text: str) -> str:
    """Return the absolute path of a Python interpreter, given by a path or by a name on PATH. Symlinks stay: a virtual
    environment is found through them.
    """
    place = path(text, option="interpreter")
    found = shutil.which(str(place.absolute()) if "/" in str(text) else text)
    if found is None:
        raise Invalid(f"interpreter: {text!r} is not an executable file; use a path such as /opt/env/bin/python")
    return str(Path(found).absolute())


def names(text: str | Iterable[str] | None, *, option: str = "outputs") -> tuple[str, ...]:
    """Parse Python names from "model,history" or a list; each once, in order."""
    parts = [part for entry in texts(text, option=option) for part in entry.replace(",", " ").split()]
    for part in parts:
        if not part.isidentifier():
            raise Invalid(f"{option}: {part!r} is not a valid variable name")
    return tuple(dict.fromkeys(parts))


def environment(pairs: Mapping[str, str] | Iterable[str] | None, *, option: str = "env") -> dict[str, str]:
    """Parse environment variables from {"K": "V"} or ["K=V", ...]; "K" alone uses the current value of K."""
    if isinstance(pairs, Mapping):
        found = {str(key): str(value) for key, value in pairs.items()}
    else:
        found = {}
        for pair in texts(pairs, option=option):
            key, equals, value = pair.partition("=")
            if not equals and key not in os.environ:
                raise Invalid(f"{option}: {key} is not set in this environment; use {key}=VALUE")
            found[key] = value if equals else os.environ[key]
    for key in found:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", key):
            raise Invalid(f"{option}: {key!r} is not a valid environment variable name")
    return found


def secrets(
    given: str | Iterable[str] | None, environment: Mapping[str, str], *, option: str = "secret"
) -> dict[str, str]:
    """Parse the names of secret variables, "HF_TOKEN,WANDB_API_KEY" or a list; return their values by name."""
    found: dict[str, str] = {}
    for name in filter(None, re.split(r"[ ,]+", ",".join(texts(given, option=option)))):
        if "=" in name:
            key = name.partition("=")[0]
            raise Invalid(f"{option}: use only the name, {key}; a value would stay readable in the notebook")
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise Invalid(f"{option}: {name!r} is not a valid environment variable name")
        value = environment.get(name, "")
        if not value:
            how = f'os.environ["{name}"] = getpass.getpass()'
            raise Invalid(f"{option}: {name} is not set in this environment. Set it first, for example: {how}")
        if len(value) < NAMED_LENGTH_MIN:
            raise Invalid(
                f"{option}: the value of {name} has only {len(value)} characters, which is too short to be masked in "
                f"logs; use --env {name}"
            )
        found[name] = value
    return found


_JUPYTERS_OWN: Final = re.compile(
    r"(JPY_|JUPYTERHUB_).*|JUPYTER_TOKEN|JUPYTER_DLAAS_.*|CONFIGPROXY_AUTH_TOKEN|DLAAS_.*"
    r"|RANK|LOCAL_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|MASTER_ADDR|MASTER_PORT|TORCHELASTIC_.*"
)


def without_jupyter(variables: Mapping[str, str]) -> dict[str, str]:
    """Return a job's environment: without Jupyter's variables and tokens, and without those that a gang sets itself."""
    return {
        key: value
        for key, value in variables.items()
        if not _JUPYTERS_OWN.fullmatch(key) and "\0" not in value and _is_text(key) and _is_text(value)
    }


def _is_text(value: str) -> bool:
    """Return whether the value is valid UTF-8; other bytes cannot be sent as JSON."""
    return value.isascii() or not any(0xD800 <= ord(letter) < 0xE000 for letter in value)


def job_name(text: str) -> str:
    """Derive a job name from the name of a file or notebook: "My model (2).py" gives "My_model_2"."""
    stem = re.sub(r"\.(py|ipynb)$", "", Path(text).name)
    kept = re.sub(r"[^A-Za-z0-9_]+", "_", stem).strip("_").lstrip("0123456789_")
    return kept[:40] or "train"


def framework_of(source: str) -> str | None:
    """Return the first training framework that a program imports: "torch", "jax" or "tensorflow"."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return None  # the submission or the job reports the syntax error
    found: list[tuple[int, str]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.append((node.lineno, node.module))
    known = [_FRAMEWORKS[root] for _, name in sorted(found) if (root := name.partition(".")[0]) in _FRAMEWORKS]
    return known[0] if known else None
