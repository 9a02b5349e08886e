"""Objects of Keras keep the state that they only make at their first step: over halts, and as results."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.selection import each_nth


@pytest.mark.parametrize("backend", each_nth(["torch", "jax", "tensorflow"], 3))
def test_keras_objects_keep_moments_and_identity(backend: str) -> None:
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.learner.keras_programs"],
        env={**os.environ, **quiet, "KERAS_BACKEND": backend},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
    )

    assert done.returncode == 0, done.stderr[-3000:]
    expected = [
        "layers",
        "trained_variables",
        "halts",
        "results",
        "new_optimizer",
        "compiled",
        "fitted_again",
        "generators",
        "nested",
        "unfrozen",
        "compiled_again",
        "layers_in_common",
        "written_states",
    ]
    assert done.stdout.split() == [f"test_{name}" for name in expected]
