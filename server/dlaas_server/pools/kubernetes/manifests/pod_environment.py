"""Variables of a job that also hold in a pod: those that its owner named, and settings of frameworks. Pure.

A notebook's environment describes its machine: paths, sessions, devices. Nothing of that holds in a pod, and unknown
variables may be credentials that have nothing to do with the job.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Final

from jupyter_dlaas.wire.left_out import LEFT_OUT
from jupyter_dlaas.wire.secret_masking import SECRETS

__all__ = ["PREFIXES", "pod_environment"]

PREFIXES: Final = (
    # threads and numerics
    *("OMP", "KMP", "GOMP", "MKL", "OPENBLAS", "BLIS", "NUMEXPR", "VECLIB", "CUBLAS", "CUDNN", "NVTE"),
    # communication
    *("NCCL", "RCCL", "GLOO", "UCX", "FI"),
    # frameworks
    *("TORCH", "PYTORCH", "TORCHINDUCTOR", "TORCHDYNAMO", "AOT", "TRITON", "INDUCTOR", "TF", "XLA", "JAX", "KERAS"),
    *("FLAX", "PL", "ACCELERATE", "DEEPSPEED", "FSDP", "LIGHTGBM", "XGBOOST"),
    # data, models and trackers
    *("HF", "HUGGINGFACE", "HUGGING_FACE", "TRANSFORMERS", "DATASETS", "DIFFUSERS", "TOKENIZERS", "TIMM"),
    *("WANDB", "MLFLOW", "COMET", "NEPTUNE", "CLEARML", "AIM", "SWANLAB"),
    # the user's own
    *("DLAAS", "LC"),
)
"""Prefixes of variables, without the underscore behind them, that are handed on."""
_NAMES: Final = (
    r"(HTTPS?|FTP|ALL|NO)_PROXY|(https?|ftp|all|no)_proxy|LANG|LANGUAGE|TZ|NO_COLOR|FORCE_COLOR|MPLBACKEND"
    r"|CUDA_LAUNCH_BLOCKING|PYTHON(HASHSEED|OPTIMIZE|WARNINGS|FAULTHANDLER|UTF8|DEVMODE|BREAKPOINT|MALLOC)"
)
_NAME: Final = re.compile(r"[A-Za-z_]\w{0,199}")
_ALLOWED: Final = re.compile(rf"{_NAMES}|({'|'.join(PREFIXES)})_\w*")
_OF_A_MACHINE: Final = re.compile(r"\w+_(HOME|DIR|DIRECTORY|FOLDER|PATH|CACHE|ROOT|FILE|SOCKET)|DLAAS_(AGENT|JOB)\w*")
"""Names whose values are paths of the notebook's machine, or that a pod sets itself."""


def pod_environment(environment: Mapping[str, str], named: Collection[str] = ()) -> dict[str, str]:
    """Return the variables that a pod gets, and in LEFT_OUT the names of the others.

    `named`: names that the job's owner gave; secrets are named, too.
    """
    kept = {*named, *filter(None, environment.get(SECRETS, "").split(","))}
    sent = {
        name: value
        for name, value in environment.items()
        if name in kept or (_ALLOWED.fullmatch(name) and not _OF_A_MACHINE.fullmatch(name))
    }
    left_out = [name for name in sorted(environment.keys() - sent.keys()) if _NAME.fullmatch(name)]
    return {**sent, LEFT_OUT: ",".join(left_out)} if left_out else sent
