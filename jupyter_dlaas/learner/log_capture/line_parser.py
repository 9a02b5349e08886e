"""A parser for metrics in printed lines: "Epoch 3/10, train loss: 0.52 | val acc: 92.3%". Pure.

A number counts as a metric if its name contains a metric's word (loss, accuracy, F1 …), or if it is named on a line
that states an epoch or step. Sizes, times, paths, versions and prose are ignored.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Final

from jupyter_dlaas.learner.log_capture.table_parser import Columns, header_of
from jupyter_dlaas.learner.log_capture.vocabulary import (
    ASIDE,
    COUNTERS,
    EPOCHS,
    FILLERS,
    NEVER,
    PHASES,
    is_metric,
    may_matter,
    name_of,
    words_of,
)

__all__ = ["Found", "Recogniser"]

_LONGEST: Final = 1000
_NAME_WORDS_MOST: Final = 5
_COUNT_MAX: Final = 2**53
"""The largest epoch or step: floats are exact up to here, and computations with it cannot overflow."""

_NUMBER: Final = (
    r"(?<![\w.@])(?<![A-Za-z]-)[-+]?(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?(?![\d,])|\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?(?![\w]|\.\d)"
    r"|(?<![\w.])[-+]?(?:nan|inf(?:inity)?)(?!\w)"
)
_NUMBERS: Final = re.compile(_NUMBER, re.IGNORECASE)
_COLOURS: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x08+")
_BAR: Final = re.compile(r"\d%\||\b(?:it/s|s/it)[\],]")
_WRAPPED: Final = re.compile(
    rf"\b(?:tensor|array|Array|(?:np|numpy|jnp)\.\w+)\(\s*\[?\s*({_NUMBER})\s*\]?\s*(?:,\s*[a-z_]+=[^()]*(?:<[^>]*>)?[^()]*)?\)"
)
_BLANKS: Final = re.compile(
    r"https?://\S+"
    r"|(?<![\d.])\d{4}(?P<mark>[-/.])\d{1,2}(?P=mark)\d{1,2}(?!\d)[T ]?"
    r"|\b\d{1,2}:\d{2}(?::\d{2})?(?:[.,]\d+)?(?:\s*[ap]m\b)?"
    r"|\S*\.(?:pth?|ckpt|h5|hdf5|py|csv|tsv|png|jpe?g|json|ya?ml|txt|zip|gz|tar|keras|safetensors|np[yz]|pkl|joblib|log|pdf|onnx|bin)\b\S*"
    r"|(?<!\S)(?:\.{0,2}|~|\w+)/\S*[A-Za-z_]\S*/\S*"
    r"|\bv?\d+\.\d+\.\d+\S*",
    re.IGNORECASE,
)
_LEVEL: Final = re.compile(
    r"^\W*(?:[IWE]\d{4}\s+(?:\d+\s+)?\S+\]\s*|\[?(?:DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL)\]?\b\s*[-:|\]]*\s*(?:[\w.]+:(?=\S))?)",
)
_FLOAT_NUMBER: Final = r"[-+]?\d*\.\d+(?:[eE][-+]?\d+)?"
_UNNAMED_LOSS: Final = re.compile(rf"\s*:?\s*({_FLOAT_NUMBER})\s*$")
_TIMED_LOSS: Final = re.compile(rf"\s*({_FLOAT_NUMBER})(?!\S)")
_POINT: Final = re.compile(r"\d\.\d")
_DECIMAL_COMMA: Final = re.compile(r"(?<![\w.,\[(])(0(?=,\d)|\d+(?=,(?:\d\d?|\d{4,})(?!\d))),(\d+)(?![\w.]|,\d)")
"""Numbers in the format of many locales, as "0,52": never those that may be thousands or parts of a list."""
_COMMA: Final = re.compile(r"(?<![\w.,\[(])(\d+),(\d+)(?![\w.]|,\d)")
_GROUPED: Final = re.compile(r"(?<![\w.])\d{1,3}(?:_\d{3})+(?![\w.])")
_BOUND: Final = re.compile(r"\b\w+\s*[<>]=?\s*[-+]?[\d.]+")
"""Conditions such as "stop when loss < 0.1"."""
_BRACKETED: Final = re.compile(r"\[([A-Za-z][\w ]{0,30})\]\s*[:=](?=\s*[-+.\d])")
_PAIR: Final = re.compile(
    r"\b([A-Za-z]\w*)[ \t]*/[ \t]*([A-Za-z]\w*)(?:[ \t]+([A-Za-z]\w*))?[ \t]*[:=][ \t]*"
    rf"({_FLOAT_NUMBER})[ \t]*/[ \t]*({_FLOAT_NUMBER})(?![\w.])"
)
_TIMED: Final = (
    # "3 60% (0m 1s) 0.25"
    re.compile(r"^\s*(?P<step>\d+)\s+\d{1,3}%\s+\([^()]*\d\s*[hms]\b[^()]*\)"),
    # "1m 54s (- 26m 31s) (5000 6%) 2.8499"
    re.compile(r"^\s*\d+m\s+\d+s\s+\(-[^()]*\)\s*\((?P<step>\d+)\s+\d{1,3}%\)"),
)
"""A step with the elapsed time; an unnamed number after it is the loss."""
_LEADING: Final = (
    # "[3, 2000] loss: …": epoch and step
    (re.compile(r"^\s*\[\s*(?P<epoch>\d+)\s*,\s*(?P<step>\d+)\s*\]"), "epoch"),
    # "[0/5][50/1583] Loss_D: …"
    (
        re.compile(
            r"^\s*\[\s*(?P<epoch>\d+)\s*/\s*(?P<epochs>\d+)\s*\]\s*\[\s*(?P<step>\d+)\s*/\s*(?P<steps>\d+)\s*\]"
        ),
        "epoch",
    ),
    # "[640/60000 (1%)] loss: …": samples of one epoch
    (re.compile(r"^\s*[\[(]\s*(?P<step>\d+)\s*/\s*(?P<steps>\d+)\s*\(\s*[\d.]+\s*%\s*\)\s*[\])]"), "step"),
    # "[3/10] loss: …", "3/10: loss …"
    (re.compile(r"^\s*[\[(]?\s*(?P<epoch>\d+)\s*/\s*(?P<epochs>\d+)\s*[\])]?(?=[\s:,|-])"), "either"),
    # "[10]	train-rmse:…", "7: loss …", "7 [D loss: …"
    (re.compile(r"^\s*\[\s*(?P<step>\d+)\s*\]"), "step"),
    (re.compile(r"^\s*(?P<step>\d+)\s*(?::|\s\[|\s-\s|\s\|)(?=\s*\S)"), "step"),
)
_TOTAL: Final = re.compile(r"\s*(?:/|of|out of)\s*(\d+)(?![\w.]*[A-Za-z])", re.IGNORECASE)
_BEHIND: Final = re.compile(r"\s*\]?\s*[\[(]\s*(\d+)\s*/\s*(\d+)(?:\s*\(\s*[\d.]+\s*%\s*\))?\s*[\])]")
_OF_BATCHES: Final = re.compile(r"\s*/\s*(\d+)\s+(?:batches|steps|iters|iterations)\b", re.IGNORECASE)
_ASIDE_COUNT: Final = re.compile(r"\s*(?:batch(?:es)?|epochs?|steps?|samples?)\s*\)", re.IGNORECASE)
_MEANS: Final = re.compile(r"\s*[:=]\s*")
_PARAMETER: Final = re.compile(
    r"(?:^|[\s(\[@,])(?:k|n|top_?k|alpha|beta|gamma|tau|eps|epsilon|thresh|threshold|thr|temperature|seed|lam|margin)\s*$"
)
"""The parameter of a metric: "acc@k=5: 0.8" is not an accuracy of 5."""
_MEANS_FOR: Final = re.compile(r"[)\]]?\s*(?:[:=]|\bis\b)\s*")
_PREPOSITIONS: Final = frozenset({"of", "on", "for", "over", "after", "at", "in"})
_RATIO: Final = re.compile(r"\s*/\s*(\d+)(?![\w.])")
_SHARE: Final = re.compile(r"\s*[\[(]\s*[\d.]+\s*%\s*[\])]")
_PERCENT: Final = re.compile(r"\s*(?:%|percent\b)")
_UNIT: Final = re.compile(
    r"\s*(?:s|secs?|seconds?|ms|us|µs|ns|m|mins?|minutes?|h|hrs?|hours?|days?|[KMGT]i?B|bytes?|B|it/s|x|px|fps|GFLOPs?"
    r"|(?:samples?|images?|examples?|tokens?|items?|imgs?|batches|steps)(?:/s(?:ec)?)?|/s(?:ec)?|Hz|W|params?|parameters"
    r"|times?|classes|epochs?|files?|rows|layers|workers|GPUs?)\b(?!\s*[:=])"
)
_JOINED: Final = re.compile(r"^(?:.*(?<![\w']))?\(?['\"]([^'\"]+)['\"]\s*,\s*$", re.DOTALL)
_SEPARATOR: Final = re.compile(
    r"\s*(?::=|==|:|=|->|=>|→|≈|~|\bis\b|\bwas\b|\bof\b|\bat\b)\s*[\"'({]?\s*$", re.IGNORECASE
)
_BETWEEN: Final = " \t:=#.[(\"'-_>"
_LAST_WORD: Final = re.compile(r"[^\W\d_]+$")
_CHINESE_EPOCH: Final = re.compile(r"第\s*(\d+)\s*(?:轮|次|代)?")
_FLOAT: Final = re.compile(r"\d+\.\d+")
_LIST: Final = re.compile(r"[:=]\s*[\[(]\s*$")
_DELIMITER: Final = re.compile(
    r"[,;|\t{}\[\]—–•·*]|\s-+\s|(?<!al)(?<!vg)(?<!cc)\.\s|\)\s*:|\s{3,}(?=\S)|(?<=\))\s|&&|\band\b|\bwith\b"
)


@dataclass(frozen=True, slots=True)
class Found:
    """The content of one line. `step` counts within the epoch if `epoch` is known, otherwise over all epochs."""

    values: dict[str, float] = field(default_factory=dict)
    epoch: int | None = None
    epochs: int | None = None
    step: int | None = None
    steps: int | None = None

    @property
    def says_nothing(self) -> bool:
        return not self.values and self.epoch is None and self.step is None


@dataclass(slots=True)
class _Line:
    values: dict[str, float] = field(default_factory=dict)
    at: dict[str, int] = field(default_factory=dict)
    phase: str = ""
    pending: list[str] = field(default_factory=list)
    """In "Loss step 10:", the name of the number after the counter."""

    @property
    def has_counter(self) -> bool:
        return bool(self.at)

    def put(self, **counts: int | None) -> None:
        for name, value in counts.items():
            if value is not None and value <= _COUNT_MAX:
                self.at.setdefault(name, value)


class Recogniser:
    """A parser of a program's lines, one by one. Its only state is the header of the current table."""

    def __init__(self) -> None:
        self._columns: Columns | None = None

    def read(self, text: str) -> Found | None:
        """Return the content of a line; None if there is none."""
        if len(text) > _LONGEST:
            return None
        if self._columns is not None:
            row = self._columns.row(text)
            if row is not None:
                line = _Line(row.values)
                line.put(epoch=row.epoch, step=row.step)
                return Found(line.values, **line.at)
        if not may_matter(text):
            return None
        text = _COLOURS.sub("", text)
        if _BAR.search(text):
            return None
        columns = header_of(text)
        if columns is not None:
            self._columns = columns
            return None
        line = _read(_plain(text))
        found = Found(line.values, **line.at)
        return None if found.says_nothing else found


def _plain(text: str) -> str:
    """Return the line without its prefix, dates, times, paths and versions, whose digits are no metrics."""
    text = _CHINESE_EPOCH.sub(r" epoch \1 ", text)
    text = text.replace("：", ": ").replace("，", ", ").replace("\u00a0", " ").replace("^2", "2").replace("²", "2")
    text = _BLANKS.sub(" ", text)
    if not text.lstrip().startswith(("[D ", "[G ")):
        text = _LEVEL.sub("", text, count=1)
    text = _WRAPPED.sub(r"\1", text)
    text = _BOUND.sub(" ", text)
    text = _GROUPED.sub(lambda match: match[0].replace("_", ","), text)
    if _POINT.search(text) is None and _DECIMAL_COMMA.search(text):
        text = _COMMA.sub(r"\1.\2", text)
    text = _PAIR.sub(_parted, text)
    return _BRACKETED.sub(_unbracketed, text)


def _parted(match: re.Match[str]) -> str:
    """Write "Gen/Dis Loss: 0.7/0.6" as two pairs; drop the numbers if the names are not metrics."""
    first, second, what, *values = match.groups()
    names = (f"{first} {what}", f"{second} {what}") if what else (first, second)
    if not all(is_metric(words_of(name)) for name in names):
        return f"{first}/{second} {what or ''}"
    return ", ".join(f"{name}: {value}" for name, value in zip(names, values, strict=True))


def _unbracketed(match: re.Match[str]) -> str:
    """Write "[LOSS]: 0.25" as "LOSS: 0.25"; keep labels such as "[rank]: 0"."""
    words = words_of(match[1])
    return f"{match[1]}: " if is_metric(words) or (words and words[-1] in EPOCHS | COUNTERS) else match[0]


def _read(text: str) -> _Line:
    line = _Line()
    if _timed(text, line):
        return line
    start = _leading(text, line)
    unnamed = _UNNAMED_LOSS.match(text, start)
    if unnamed and ({"epochs", "steps"} & set(line.at)):  # "1000/5000: 0.25"
        line.values["loss"] = float(unnamed[1])
        return line
    numbers = list(_NUMBERS.finditer(text, start))
    _counters(text, start, numbers, line)
    used = start  # the line is parsed up to here
    segment = start  # the start of the clause that contains the number
    for at, match in enumerate(numbers):
        if match.start() < used:
            continue
        gap = text[used : match.start()]
        cut = max((found.end() for found in _DELIMITER.finditer(gap)), default=0)
        joined = _JOINED.match(gap)
        if joined:
            name, is_said = joined[1], True
        else:
            name, is_said = gap[cut:], False
        if cut:
            segment = used + cut
            line.phase = _label(gap[:cut]) or line.phase
        used = _take(text, match, name, text[segment : match.start()], line, is_said=is_said, gap=gap)
        if at + 1 < len(numbers) and used > numbers[at + 1].start():
            segment = used
    return line


def _timed(text: str, line: _Line) -> bool:
    """Read "3 60% (0m 1s) 0.25"; return False for a line of another kind."""
    for pattern in _TIMED:
        match = pattern.match(text)
        loss = _TIMED_LOSS.match(text, match.end()) if match else None
        if match and loss:
            line.put(step=int(match["step"]))
            line.values["loss"] = float(loss[1])
            return True
    return False


def _leading(text: str, line: _Line) -> int:
    """Read unnamed counters at the beginning of a line; return where they end."""
    for pattern, kind in _LEADING:
        match = pattern.match(text)
        if match is None:
            continue
        counts = {name: int(value) for name, value in match.groupdict().items() if value is not None}
        if kind == "either" and (counts["epoch"] > counts["epochs"] or "━" in text or "[=" in text):
            counts = {"step": counts["epoch"], "steps": counts["epochs"]} if counts["epoch"] <= counts["epochs"] else {}
        line.put(**counts)
        return match.end() if counts else 0
    return 0


def _counters(text: str, start: int, numbers: list[re.Match[str]], line: _Line) -> None:
    """Read epochs and steps first: a line that states the position may use any names for its numbers."""
    end = start
    for match in numbers:
        if match.start() < end:
            continue
        gap = text[end : match.start()]
        kind = _counter_of(gap)
        behind = match.end()
        end = behind
        of_batches = _OF_BATCHES.match(text, behind)
        if of_batches and match[0].isdigit():  # "200/ 2928 batches"
            line.put(step=int(match[0]), steps=int(of_batches[1]))
            end = of_batches.end()
            continue
        is_far = _FLOAT.fullmatch(match[0]) and not _named_before(gap)  # not "acc over epoch: 0.32"
        if kind == "epoch" and is_far:  # "'epoch': 0.32": this part of the first epoch
            line.put(epoch=int(match[0].partition(".")[0]))
        count = match[0].removesuffix(".")  # "Iteration: 10. Loss: …"
        if kind is None or not count.isdigit():
            continue
        total = _TOTAL.match(text, behind)
        if kind.endswith("s") and not total:  # "Epochs: 20" is the number of epochs
            continue
        most = int(total[1]) if total else None
        end = total.end() if total else behind
        if kind.startswith("epoch"):
            line.put(epoch=int(count), epochs=most)
        else:
            line.put(step=int(count), steps=most)
        samples = _BEHIND.match(text, end)
        if samples and kind.startswith("epoch"):  # "Train Epoch: 1 [6400/60000 (11%)]"
            line.put(step=int(samples[1]), steps=int(samples[2]))
            end = samples.end()


def _counter_of(gap: str) -> str | None:
    """Return "epoch" or "step" if this text names a counter ("epochs", "steps" for a plural), otherwise None."""
    if gap.rstrip().endswith(","):
        gap = gap.rstrip()[:-1]
        if not gap.endswith(("'", '"')):
            return None
    stripped = gap.rstrip(_BETWEEN)
    word = _LAST_WORD.search(stripped)
    if word is None:
        return None
    said = word[0].lower()
    if said not in EPOCHS and said not in COUNTERS:
        return None
    before = words_of(stripped[: word.start()])[-1:]
    if before and before[0] in ASIDE:
        return None
    many = "s" if said.endswith("s") else ""
    return f"epoch{many}" if said in EPOCHS else f"step{many}"


def _take(text: str, match: re.Match[str], name: str, clause: str, line: _Line, *, is_said: bool, gap: str) -> int:
    """Classify one number by its name; return the position up to which the line is parsed."""
    end = match.end()
    pending, line.pending = line.pending, []
    if pending and (_MEANS.fullmatch(gap) or _MEANS_FOR.fullmatch(gap)):
        value, end = _value(text, match)
        line.values.setdefault(name_of(pending), value)
        return end
    if _ASIDE_COUNT.match(text, end) and "(" in gap:  # "loss (for 1 batch) at step 5:"
        return match.start() - len(gap)
    named = _named_before(gap)
    is_count = match[0].replace(".", "", 1).isdigit() and not (named and re.fullmatch(r"\d*\.\d+", match[0]))
    if _counter_of(name) is not None and is_count:
        line.pending = named
        line.phase = line.phase or _phase_of(name, words_of(name))
        total = _TOTAL.match(text, end)
        end = total.end() if total else end
        samples = _BEHIND.match(text, end)
        return samples.end() if samples else end
    if _LIST.search(name):
        closing = text.find("]", end)
        return closing + 1 if closing >= 0 else end
    separator = _SEPARATOR.search(name)
    bare = name[: separator.start()] if separator else name
    words = words_of(bare)
    phase = _phase_of(bare, words)
    value, end = _value(text, match)
    name_words = [word for word in words if word not in FILLERS]
    if separator and "=" in separator[0] and _PARAMETER.search(bare) and is_metric(name_words[:-1]):
        line.pending = [*name_words[:-1], f"{name_words[-1]}{match[0]}".replace(".", "_")]
        return match.end()
    if not is_metric(name_words) and separator:
        name_words, phase = _of_clause(clause, name_words, phase)
    if not name_words or len(name_words) > _NAME_WORDS_MOST or any(word in NEVER for word in name_words):
        if phase and not line.values.get(phase):
            line.phase = phase
        return end
    is_float = not match[0].lstrip("+-").isdigit()
    is_known = is_metric(name_words)
    is_named = bool(separator) or is_said
    has_unit = _UNIT.match(text, match.end()) is not None
    if has_unit or not (
        (is_known and (is_named or is_float or line.has_counter or end > match.end()))
        or (line.has_counter and is_named and is_float and "(" not in bare and not ASIDE.intersection(name_words))
        or (line.has_counter and is_float and [phase] == [PHASES.get(word) for word in name_words])
    ):
        return end
    if phase:
        line.phase = phase
    elif line.phase and is_known and not {"lr", "rate"} & set(name_words) and not set(name_words) & set(PHASES):
        name_words = [line.phase, *name_words]
    line.values.setdefault(name_of(name_words), value)
    samples = _BEHIND.match(text, end)
    if samples and not line.has_counter and end == match.end():  # "loss: 2.30 [ 6400/60000]"
        line.put(step=int(samples[1]), steps=int(samples[2]))
    return samples.end() if samples else end


def _named_before(gap: str) -> list[str]:
    """Return the metric before a counter: "Loss step ", "Training loss (for one batch) at step "."""
    head: list[str] = []
    for word in words_of(gap):
        if word in EPOCHS or word in COUNTERS or word in _PREPOSITIONS:
            break
        head.append(word)
    head = [word for word in head if word not in FILLERS]
    is_plain = is_metric(head) and len(head) <= 3 and not any(word in NEVER for word in head)
    return head if is_plain else []


def _label(text: str) -> str:
    """Return the phase of a label such as "[train]" or "Test set:" before the names."""
    for part in _DELIMITER.split(text):
        words = [word for word in words_of(part or "") if word not in FILLERS]
        if len(words) == 1 and words[0] in PHASES:
            return PHASES[words[0]]
    return ""


def _phase_of(bare: str, words: list[str]) -> str:
    """Return train, val or test if it is a separate word. It also applies to the rest of the line."""
    for word in words:
        if word in PHASES and re.search(rf"(?<![\w]){re.escape(word)}(?![\w'])", bare, re.IGNORECASE):
            return PHASES[word]
    return ""


def _of_clause(clause: str, name_words: list[str], phase: str) -> tuple[list[str], str]:
    """Return the name from the beginning of a clause: "Accuracy of the network on the 10000 test images: 55"."""
    words = words_of(clause)
    if not 2 <= len(words) <= 16 or {"class", "label", "category"} & set(words):
        return name_words, phase
    head: list[str] = []
    for word in words:
        if word in _PREPOSITIONS:
            break
        head.append(word)
    else:
        return name_words, phase
    head = [word for word in head if word not in FILLERS]
    if not is_metric(head) or len(head) > 3 or any(word in NEVER for word in head):
        return name_words, phase
    later = next((PHASES[word] for word in words if word in PHASES), "")
    return ([later, *head] if later and not set(head) & set(PHASES) else head), later or phase


def _value(text: str, match: re.Match[str]) -> tuple[float, int]:
    """Return the number's value and end, with a per cent sign or the total of which it is a part."""
    raw = match[0].replace(",", "")
    value = float(raw)
    ratio = _RATIO.match(text, match.end())
    whole = float(ratio[1]) if ratio else 0.0
    if ratio and raw.isdigit() and whole >= value and whole and math.isfinite(whole):
        end = ratio.end()
        share = _SHARE.match(text, end)
        return value / whole, share.end() if share else end
    percent = _PERCENT.match(text, match.end())
    if percent and math.isfinite(value):
        return _hundredth(raw, value), percent.end()
    return value, match.end()


def _hundredth(raw: str, value: float) -> float:
    """Return a percentage as a fraction with the printed digits: 92.3 % is 0.923, not 0.9229999."""
    digits = len(raw.partition(".")[2]) if "e" not in raw.lower() else 12
    return round(value / 100, digits + 2)
