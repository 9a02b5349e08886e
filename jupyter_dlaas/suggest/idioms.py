"""Idioms of training loops: names and calls that identify an optimiser, a progress bar or a model. Pure."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Final

from jupyter_dlaas.analysis.call_graph import Scope, last_name

__all__ = [
    "BATCHES",
    "DATASETS",
    "ITERATORS",
    "MODEL_CONSTRUCTORS",
    "MODEL_NAMES",
    "NOT_MODELS",
    "is_loss",
    "is_phases",
    "kind_of",
    "range_in",
    "unwrapped",
    "whose_parameters",
]

BARS: Final = re.compile(r"tqdm|^progress_bar$|^master_bar$|^track$|^ProgressBar$|^pbar$", re.IGNORECASE)
SCHEDULES: Final = re.compile(r"LR$|Scheduler$|^get_\w*schedule\w*$|^CosineAnnealingWarmRestarts$|^ReduceLROnPlateau$")
SCHEDULER_NAMES: Final = re.compile(r"sched|warm_?up|^lr_?s$|annealing", re.IGNORECASE)
OPTIMIZER_NAMES: Final = re.compile(r"opt|sgd|adam|solver|trainer_[dg]$|^optim", re.IGNORECASE)
NOT_OPTIMIZERS: Final = re.compile(r"prof|env|sim|writer|bar|timer|meter|world|game", re.IGNORECASE)
MODEL_NAMES: Final = re.compile(
    r"model|net|^[gd]$|^(gen|disc|enc|dec|clf|rnn|cnn|mlp|lstm|gru|vae|gan|unet|bert|policy|actor|critic|agent|backbone)",
    re.IGNORECASE,
)
NOT_MODELS: Final = re.compile(r"loss|crit|metric|acc|device|transform|token|score|cost|norm$|error", re.IGNORECASE)
MODEL_CONSTRUCTORS: Final = re.compile(r"\bnn\.|\bmodels\.|from_pretrained$|^timm\.|^Sequential$|hub\.load$")
BATCHES: Final = frozenset({"list", "tuple", "zip", "split", "chunk", "array_split", "items", "sorted"})
ITERATORS: Final = re.compile(
    r"Iterator\b|(^|\.)(iter|map|filter|cycle|chain|reader|DictReader|iterrows|itertuples|as_numpy|batched)$"
)
"""Constructors of iterators over batches: torchtext's `BucketIterator.splits(…)`, `map(…)`."""
DATASETS: Final = re.compile(r"Dataset$|^MNIST$|^FashionMNIST$|^CIFAR\d+$|^ImageFolder$|^Subset$")


def unwrapped(node: ast.expr) -> ast.expr:
    """Return the expression that a progress bar, `enumerate` and the like iterate over."""
    while isinstance(node, ast.Call) and node.args:
        name = last_name(node.func)
        if name == "master_bar" or name in ("enumerate", "iter", "islice") or (BARS.search(name)):
            node = node.args[0]
        else:
            break
    return node


def range_in(node: ast.expr) -> ast.Call | None:
    """Return the `range(…)` or `trange(…)` of a loop, also inside a progress bar."""
    inner = unwrapped(node)
    if isinstance(inner, ast.Call) and last_name(inner.func) in ("range", "trange", "tnrange") and inner.args:
        return inner
    return None


def is_phases(loop: ast.AST) -> bool:
    """Return whether a loop is `for phase in ["train", "val"]`."""
    return (
        isinstance(loop, ast.For)
        and isinstance(loop.iter, ast.List | ast.Tuple)
        and all(isinstance(elt, ast.Constant) and isinstance(elt.value, str | bool) for elt in loop.iter.elts)
    )


def is_loss(receiver: ast.expr) -> bool:
    return "loss" in ast.unparse(receiver).lower()


def kind_of(made: ast.expr | None, text: str, call: ast.Call) -> str:
    """Return "optimizer", "scheduler", "scaler", or "" for another object with a method of this name."""
    name = last_name(made.func) if isinstance(made, ast.Call) else ""
    shown = ast.unparse(made.func) if isinstance(made, ast.Call) else ""
    if name == "GradScaler" or (not name and "scaler" in text.lower()):
        return "scaler"
    if "lr_scheduler" in shown or SCHEDULES.search(name) or (not name and SCHEDULER_NAMES.search(text)):
        return "scheduler"
    if name:
        takes_parameters = made is not None and "param" in ast.unparse(made)
        return "optimizer" if takes_parameters or "optim" in shown or OPTIMIZER_NAMES.search(text) else ""
    if call.args and not all(isinstance(arg, ast.Name) and "closure" in arg.id for arg in call.args):
        return ""  # `env.step(action)`
    return "" if NOT_OPTIMIZERS.search(text) else "optimizer"


def whose_parameters(made: ast.Call, home: Scope) -> Iterator[str]:
    """Yield `model` of `Adam(model.parameters())`, also through a list that was created above."""
    waiting: list[tuple[ast.AST, int]] = [(made, 0)]
    while waiting:
        node, depth = waiting.pop(0)
        for one in ast.walk(node):
            if isinstance(one, ast.Call) and isinstance(one.func, ast.Attribute):
                if one.func.attr.endswith("parameters"):
                    yield ast.unparse(_whole_module(one.func.value))
            elif isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load) and depth < 3:
                waiting += [(value, depth + 1) for value in home.values(one.id) if "param" in ast.unparse(value)]


def _whole_module(node: ast.expr) -> ast.expr:
    """Return `model` for `model.fc`: only the head is trained, but the model is called."""
    while isinstance(node, ast.Attribute) and not (isinstance(node.value, ast.Name) and node.value.id == "self"):
        if isinstance(node.value, ast.Name) and node.value.id in ("trainer", "self"):
            break
        node = node.value
    return node
