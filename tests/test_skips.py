"""Tests that were not run are named, and CI must miss no part."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest


def run_skipping(reason: str, folder: Path, ci: str, *options: str) -> subprocess.CompletedProcess[str]:
    shutil.copy(Path(__file__).parent / "conftest.py", folder)
    (folder / "test_one.py").write_text(
        f"import pytest\ndef test_one(): pytest.skip({reason!r})\ndef test_two(): pass\n"
    )
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(folder),
        str(folder),
        *options,
    ]
    variables = os.environ | {"CI": ci}
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False)


def test_skip_names_the_missing_part_and_passes_outside_ci(tmp_path: Path) -> None:
    done = run_skipping("chromium is missing", tmp_path, ci="")

    assert "1 skipped: chromium is missing" in done.stdout
    assert done.returncode == pytest.ExitCode.OK


def test_a_skip_for_a_missing_part_fails_ci(tmp_path: Path) -> None:
    done = run_skipping("chromium is missing", tmp_path, ci="true")

    assert "CI must miss no part" in done.stdout
    assert done.returncode == pytest.ExitCode.TESTS_FAILED


def test_skips_of_workers_are_named_and_fail_ci(tmp_path: Path) -> None:
    done = run_skipping("chromium is missing", tmp_path, "true", "--numprocesses=2", "--dist=loadfile")

    assert "1 skipped: chromium is missing" in done.stdout
    assert done.returncode == pytest.ExitCode.TESTS_FAILED


def test_reports_of_passed_tests_are_printed_at_the_end(tmp_path: Path) -> None:
    source = "def test_three(record_property): record_property('report', 'nine of ten')\n"
    (tmp_path / "test_reporting.py").write_text(source)
    done = run_skipping("needs a GPU", tmp_path, "true", "--numprocesses=2", "--dist=loadfile")

    assert "nine of ten" in done.stdout
    assert done.returncode == pytest.ExitCode.OK


def test_skip_without_a_gpu_is_named_and_passes_ci(tmp_path: Path) -> None:
    done = run_skipping("needs a GPU", tmp_path, ci="true")

    assert "1 skipped: needs a GPU" in done.stdout
    assert done.returncode == pytest.ExitCode.OK
