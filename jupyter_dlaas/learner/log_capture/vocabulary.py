"""The vocabulary of training logs: names of metrics, counters, and words that exclude a number. Pure."""

from __future__ import annotations

import itertools
import re
from typing import Final

__all__ = [
    "ASIDE",
    "COUNTERS",
    "EPOCHS",
    "FILLERS",
    "NEVER",
    "PHASES",
    "is_metric",
    "may_matter",
    "name_of",
    "words_of",
]

EPOCHS: Final = frozenset({"epoch", "epochs", "ep", "epoche", "epoca", "época", "époque", "эпоха", "轮"})
COUNTERS: Final = frozenset(
    {
        "iter",
        "iters",
        "iteration",
        "iterations",
        "step",
        "steps",
        "batch",
        "batches",
        "it",
        "episode",
        "round",
        "update",
    }
)
PHASES: Final = {
    "train": "train", "training": "train", "trn": "train", "val": "val", "valid": "val", "validation": "val",
    "dev": "val", "eval": "val", "evaluation": "val", "test": "test", "testing": "test",
}  # fmt: skip

METRICS: Final = frozenset({
    "loss", "losses", "acc", "accuracy", "accuracies", "error", "err", "f1", "f1score", "precision", "recall", "auc",
    "auroc", "roc", "auprc", "ap", "map", "mse", "mae", "rmse", "rmsle", "mape", "smape", "r2", "nll", "bce", "ce",
    "crossentropy", "logloss", "perplexity", "ppl", "bpc", "bpd", "bleu", "rouge", "rouge1", "rouge2", "rougel",
    "meteor", "cer", "wer", "iou", "miou", "dice", "psnr", "ssim", "lpips", "fid", "elbo", "kl", "kld", "reward",
    "rewards", "return", "returns", "score", "scores", "cost", "objective", "top1", "top5", "acc1", "acc5", "mcc",
    "kappa", "specificity", "sensitivity", "ndcg", "mrr", "hit", "hr", "lr", "norm", "gradnorm", "rmsd", "entropy",
    "likelihood", "fitness", "energy", "residual", "perte", "verlust", "genauigkeit", "précision", "exactitud",
    "pérdida", "perdita", "потери", "точность", "损失", "准确率", "精度",
})  # fmt: skip
_PAIRS: Final = frozenset(
    {
        ("learning", "rate"),
        ("hit", "rate"),
        ("cross", "entropy"),
        ("top", "1"),
        ("top", "5"),
        ("r", "2"),
        ("grad", "norm"),
    }
)
_STEMS: Final = (
    "loss", "acc", "epoch", "err", "step", "iter", "batch", "episode", "f1", "auc", "mse", "mae", "rec", "prec",
    "score", "reward", "return", "lr", "learn", "perplexity", "ppl", "bleu", "rouge", "iou", "dice", "psnr", "ssim",
    "fid", "cer", "wer", "nll", "ce:", "ce=", "bpc", "cost", "elbo", "kl", "r2", "r^2", "r²", "entropy", "round",
    "top", "norm",
    "map", "objective", "epoc", "époque", "ep ", "ep:", "likelihood", "energy", "verlust", "genau", "perte", "pérdida",
    "perdita", "exactitud", "fitness", "mcc", "rmsd", "mape", "损失", "准确率", "精度", "轮", "эпоха", "потери",
)  # fmt: skip

FILLERS: Final = frozenset({
    "the", "a", "average", "avg", "mean_of", "current", "cur", "final", "overall", "set", "results", "result", "phase",
    "epoch", "step", "iteration", "per", "for", "on", "in", "at", "after", "got", "now", "info", "debug", "data",
    "dataset", "metrics", "model", "s", "is", "was", "of", "has", "an", "our", "this", "value", "model's", "split",
    "over",
})  # fmt: skip

ASIDE: Final = frozenset({
    "best", "early", "every", "each", "max", "min", "last", "first", "next", "previous", "from", "resume", "resuming",
    "total", "num", "number", "n", "per", "patience", "warmup", "loading", "load", "save", "saved", "saving", "log",
    "counter",
})  # fmt: skip
"""Words before "epoch" after which the number is not the current epoch."""

NEVER: Final = frozenset({
    "eltime", "walltime", "runtime", "time", "times", "sec", "secs", "second", "seconds", "minutes", "hours", "eta",
    "elapsed", "duration", "dur",
    "took", "remaining", "speed", "throughput", "size", "sizes", "shape", "shapes", "params", "parameters",
    "parameter", "memory", "mem", "gpu", "gpus", "cuda", "cpu", "ram", "version", "seed", "port", "pid", "num",
    "number", "count", "n", "samples", "images", "image", "classes", "class", "width", "height", "dim", "dims",
    "dimension", "dimensions", "workers", "threads", "rank", "world", "patience", "threshold", "hidden", "layers",
    "layer", "path", "checkpoint", "length", "len", "rows", "columns", "features", "units", "vocab", "vocabulary",
    "tokens", "examples", "dropout", "momentum", "decay", "weight_decay", "epochs", "steps", "iterations", "batches",
    "step", "epoch", "batch", "id", "index", "idx", "budget", "limit", "counter", "delta", "tolerance", "tol",
    "interval", "every", "year", "page", "improved", "decreased", "increased", "from", "by", "than", "reduced", "fold",
    "flops", "gflops", "fps", "device", "date", "day", "month", "scheduler", "smoothing", "clip", "clipping",
    "function", "weight", "weights", "target", "std", "max_epochs", "gamma", "beta", "betas", "eps", "label", "labels",
    "bytes", "files", "did", "not", "resolution", "reached", "using",
    "before",
})  # fmt: skip

_CAMEL: Final = re.compile(r"(?<=[a-z])(?=[A-Z][a-z])")
_WORD: Final = re.compile(r"[^\W_][^\W_]*(?:@\d+)?(?:'s\b)?")


_UNNAMED: Final = re.compile(
    r"\s*(?:\d+\s+\d{1,3}%\s+\(|\d+m\s+\d+s\s+\(-|\d+\s*/\s*\d+\s*:\s*[-+]?\d*\.\d+(?:[eE][-+]?\d+)?\s*$)"
)
"""Positions and losses without a name: "3 60% (0m 1s) 0.25", "1m 54s (- 26m 31s) (5000 6%) 2.8", "1000/5000: 0.25"."""


def may_matter(text: str) -> bool:
    """Return quickly whether a line may contain a metric or a position. Most lines of most programs do not."""
    low = text.lower()
    return any(stem in low for stem in _STEMS) or _UNNAMED.match(text) is not None


def words_of(text: str) -> list[str]:
    """Return the words of a name: "Train Loss", "train_loss", "trainLoss" and "Loss/train" are two words each."""
    if not text.islower():
        text = _CAMEL.sub(" ", text)
    return [word.lower().removesuffix("'s") for word in _WORD.findall(text)]


def is_metric(words: list[str]) -> bool:
    """Return whether a name of these words names a metric."""
    if not METRICS.isdisjoint(words):
        return True
    return any("@" in word and word.partition("@")[0] in METRICS for word in words) or any(
        pair in _PAIRS for pair in itertools.pairwise(words)
    )


def name_of(words: list[str]) -> str:
    """Return the normalised name of a metric: the phase first and abbreviated."""
    said = [PHASES.get(word, word) for word in words]
    phases = [word for word in said if word in PHASES]
    return "_".join([*dict.fromkeys(phases), *(word for word in said if word not in PHASES)])
