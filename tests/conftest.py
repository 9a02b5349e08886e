"""What every test gets: Hypothesis that prints how to replay a failure, and a list of what was skipped and why."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import hypothesis
import pytest

# Jobs of most tests start plainly: a zygote per temporary pool would outlive its test by half an hour.
os.environ.setdefault("JUPYTER_DLAAS_WARM", "0")

hypothesis.settings.register_profile("default", deadline=None, print_blob=True)
hypothesis.settings.register_profile("deep", deadline=None, print_blob=True, max_examples=2000)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

HERE = Path(__file__).parent
SLOW = ("corpus", "learner", "whole", "page", "autolog", "notebook_e2e", "examples", "runtime", "notebook")

# What no installation brings. Everything else that a test needs, CI installs: there a skip is a failure.
HARDWARE = ("needs a GPU",)


def skipped(terminalreporter: pytest.TerminalReporter) -> Counter[str]:
    """How many tests were skipped, by reason."""
    reasons: Counter[str] = Counter()
    for report in terminalreporter.stats.get("skipped", []):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reasons[reason.removeprefix("Skipped: ")] += 1
    return reasons


def is_missing(reason: str) -> bool:
    return not reason.startswith(HARDWARE)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow parts first: else one worker is still at a long file when the others have nothing left to do."""
    parts = [item.path.relative_to(HERE).parts[0] if item.path.is_relative_to(HERE) else "" for item in items]
    ranks = {id(item): SLOW.index(part) if part in SLOW else len(SLOW) for item, part in zip(items, parts, strict=True)}
    items.sort(key=lambda item: ranks[id(item)])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for report in terminalreporter.stats.get("passed", []):
        for name, value in report.user_properties:
            if name == "told":
                terminalreporter.section("told")
                terminalreporter.line(str(value))
    reasons = skipped(terminalreporter)
    if not reasons:
        return
    terminalreporter.section("not run")
    for reason, count in sorted(reasons.items()):
        terminalreporter.line(f"{count} skipped: {reason}")
    if os.environ.get("CI") and any(map(is_missing, reasons)):
        terminalreporter.line("CI must miss no part: this run fails.")


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """A test process that died says of what: a negative number is a signal's."""
    if error:
        print(f"{node.gateway.id} ended with {node.gateway._io.popen.wait(10)}", flush=True)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if (
        os.environ.get("CI")
        and exitstatus == pytest.ExitCode.OK
        and reporter
        and any(map(is_missing, skipped(reporter)))
    ):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
