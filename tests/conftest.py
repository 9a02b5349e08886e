"""Setup of every test: Hypothesis prints how to replay a failure, and a list names what was not run and why."""

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
SLOW = (
    "corpus",
    "learner",
    "whole",
    "page",
    "kubernetes",
    "autolog",
    "notebook_e2e",
    "examples",
    "runtime",
    "notebook",
)

CLUSTER_TESTS = HERE / "kubernetes"
"""Tests that need a Kubernetes cluster carry the mark `cluster`: built by `make cluster`, or named by a kubeconfig."""
BUILT_CLUSTER = HERE.parent / ".make" / "cluster" / "current"
EXHAUSTIVE = {
    "HYPOTHESIS_PROFILE": "deep",
    "STREAM_SEEDS": "25",
    "FUZZ_EXAMPLES": "200",
    "DLAAS_EXACT_SEEDS": "1 2 3",
}
"""What an exhaustive run tries more of, where the environment says nothing else."""
LEFT_OUT = pytest.StashKey[dict[str, int]]()
"""Number of tests that were left out, by reason."""

# What no installation brings. Everything else that a test needs, CI installs: there a skip is a failure.
HARDWARE = ("needs a GPU",)


def skipped(terminalreporter: pytest.TerminalReporter) -> Counter[str]:
    """Count the skipped tests by reason."""
    reasons: Counter[str] = Counter()
    for report in terminalreporter.stats.get("skipped", []):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reasons[reason.removeprefix("Skipped: ")] += 1
    return reasons


def is_missing(reason: str) -> bool:
    return not reason.startswith(HARDWARE)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--exhaustive", action="store_true", help="run the tests marked exhaustive, too")


def pytest_configure(config: pytest.Config) -> None:
    """Try more seeds and examples in an exhaustive run; test modules read how many when they are imported."""
    config.stash[LEFT_OUT] = {}
    if config.getoption("exhaustive"):
        for name, value in EXHAUSTIVE.items():
            os.environ.setdefault(name, value)
        hypothesis.settings.load_profile(os.environ["HYPOTHESIS_PROFILE"])


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out exhaustive tests, unless all are asked for, or one test by its name, and tests on a cluster."""
    if not config.getoption("exhaustive") and not any("::" in argument for argument in config.args):
        leave_out(config, items, "exhaustive", "exhaustive, run by `make test-all`")
    has_cluster = "DLAAS_TEST_KUBECONFIG" in os.environ or BUILT_CLUSTER.exists()
    is_whole = config.getoption("exhaustive") and has_cluster
    if not is_whole and not any(names_cluster_tests(argument) for argument in config.args):
        leave_out(config, items, "cluster", "on a Kubernetes cluster, run by `make test-kubernetes`")
    order_by_cost(items)


def leave_out(config: pytest.Config, items: list[pytest.Item], mark: str, reason: str) -> None:
    """Deselect the tests that carry a mark, and count them."""
    left_out = [item for item in items if item.get_closest_marker(mark)]
    if left_out:
        items[:] = [item for item in items if not item.get_closest_marker(mark)]
        config.stash[LEFT_OUT][reason] = len(left_out)
        config.hook.pytest_deselected(items=left_out)


def names_cluster_tests(argument: str) -> bool:
    return Path(argument.split("::")[0]).absolute().is_relative_to(CLUSTER_TESTS)


def order_by_cost(items: list[pytest.Item]) -> None:
    """Slow parts first: else one worker is still at a long file when the others have nothing left to do."""
    parts = [item.path.relative_to(HERE).parts[0] if item.path.is_relative_to(HERE) else "" for item in items]
    ranks = {id(item): SLOW.index(part) if part in SLOW else len(SLOW) for item, part in zip(items, parts, strict=True)}
    items.sort(key=lambda item: ranks[id(item)])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for report in terminalreporter.stats.get("passed", []):
        for name, value in report.user_properties:
            if name == "report":
                terminalreporter.section("reported")
                terminalreporter.line(str(value))
    reasons = skipped(terminalreporter)
    left_out = terminalreporter.config.stash[LEFT_OUT]
    if not reasons and not left_out:
        return
    terminalreporter.section("not run")
    for reason, count in sorted(left_out.items()):
        terminalreporter.line(f"{count} left out: {reason}")
    for reason, count in sorted(reasons.items()):
        terminalreporter.line(f"{count} skipped: {reason}")
    if os.environ.get("CI") and any(map(is_missing, reasons)):
        terminalreporter.line("CI must miss no part: this run fails.")


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Take over what a test process left out; one that died says of what: a negative number is a signal's."""
    node.config.stash[LEFT_OUT] |= getattr(node, "workeroutput", {}).get("left_out", {})
    if error:
        print(f"{node.gateway.id} ended with {node.gateway._io.popen.wait(10)}", flush=True)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if hasattr(session.config, "workeroutput"):  # each worker of xdist collects all tests
        session.config.workeroutput["left_out"] = session.config.stash[LEFT_OUT]
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if (
        os.environ.get("CI")
        and exitstatus == pytest.ExitCode.OK
        and reporter
        and any(map(is_missing, skipped(reporter)))
    ):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
