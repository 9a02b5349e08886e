"""The product on a cluster, as its users run it: command line, notebook, engine, guardians here and pods there."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from jupyter_dlaas.wire.protocol import JobView
from tests.kubernetes.conftest import Namespace
from tests.notebook_e2e.rooms import Kernel, Pool, environment, kernel_in, until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

SCRIPT = """
import os
for step in range(3):
    print("step", step, os.environ.get("MY_TOKEN"), os.environ.get("BATCH"), os.environ.get("OTHER"), flush=True)
answer = {"on": os.uname().nodename}
"""
TRAIN = """%%train count --gpus 1 --checkpoint-every 0.5 -o total,square
run = dlaas.run()
total = 0
for epoch in run.epochs(500):
    total += square(1)
    print("epoch", epoch, "total", total, flush=True)
    time.sleep(0.1 if os.environ["DLAAS_GENERATION"] == "1" else 0)
"""
COMMAND_S = 120.0


class Terminal:
    """A terminal of the user, with the command `jupyter dlaas`."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self.work = pool.folder / "work"
        self.work.mkdir(exist_ok=True)

    def run(self, *words: str, code: int = 0, variables: Mapping[str, str] | None = None) -> str:
        """Return what a command prints on both streams."""
        command = [sys.executable, "-m", "jupyter_dlaas.cli.main", *words]
        variables = {**environment(self._pool.folder), **(variables or {})}
        done = subprocess.run(
            command, cwd=self.work, env=variables, capture_output=True, text=True, timeout=COMMAND_S, check=False
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Pool]:
    made = Pool(tmp_path)
    yield made
    made.close()


@pytest.fixture
def terminal(pool: Pool) -> Terminal:
    return Terminal(pool)


@pytest.fixture
def kernel(pool: Pool) -> Iterator[Kernel]:
    with kernel_in(pool.folder) as made:
        made.run("%load_ext jupyter_dlaas\nimport os, time\nimport jupyter_dlaas as dlaas")
        yield made


def use(terminal: Terminal, namespace: Namespace, *words: str, code: int = 0) -> str:
    """Let the pool use the test's namespace."""
    image, kubeconfig = namespace.cluster.image, str(namespace.cluster.kubeconfig)
    options = ["--namespace", namespace.name, "--image", image, "--kubeconfig", kubeconfig]
    return terminal.run("pool", "use", "kubernetes", *options, *words, code=code)


def where(view: JobView) -> list[tuple[str, str]]:
    return [(learner.node, learner.pod) for learner in view.learners]


def test_a_pool_moves_to_a_cluster_and_back(
    pool: Pool, terminal: Terminal, kernel: Kernel, namespace: Namespace
) -> None:
    assert "Jobs run on this machine." in terminal.run("pool")
    said = use(terminal, namespace)
    assert "ok  Pods reach this machine at" in said
    assert f"Jobs run on Kubernetes: namespace {namespace.name}" in said

    (terminal.work / "short.py").write_text(SCRIPT)
    variables = {"MY_TOKEN": "hush-hush", "BATCH": "32", "OTHER": "x"}
    words = ("submit", "short.py", "-o", "answer", "--secret", "MY_TOKEN", "-e", "BATCH", "--wait")
    said = terminal.run(*words, variables=variables)
    assert "step 2 ********* 32 None" in said
    assert kernel.value("dlaas.job('short').result()") == {"answer": {"on": "short-1-m0"}}

    kernel.run("def square(x):\n    return x * x")
    sent = kernel.run(TRAIN)
    job = sent.job["id"]
    pool.until(job, "PROCESSING")
    view = pool.job(job)
    (place,) = where(view)
    assert (view.state, place[1]) == ("PROCESSING", f"{job}-m0"), (view, pool.client.events(job))
    pod = namespace.get("pods", f"{job}-m0")
    assert place == (pod["spec"]["nodeName"], f"{job}-m0")
    assert f"{job}-m0" in terminal.run("why", job)
    until(lambda: "epoch 20 " in terminal.run("logs", job))
    assert f"{job} (Processing)" in terminal.run("pool", "use", "local", code=4)

    terminal.run("halt", job)
    pool.until(job, "HALTED")
    namespace.wait_gone("pods", f"{job}-m0")
    terminal.run("resume", job)
    done = pool.until(job, "COMPLETED")
    log = terminal.run("logs", job).splitlines()
    counted = [int(line.split()[-3]) for line in log if " total " in line]
    assert counted == list(range(500)), "no epoch is trained twice, none is left out"
    assert done.restarts == 0
    kernel.run(f"dlaas.job({job!r}).wait(60)")
    assert kernel.value("dlaas.result('count', 'total')") == 500

    kernel.run(
        "%%train endless\nfor epoch in range(10**6):\n    print('epoch', epoch, flush=True)\n    time.sleep(0.05)"
    )
    pool.until("endless", "PROCESSING")
    terminal.run("cancel", "endless")
    pool.until("endless", "CANCELLED")
    for name in ("short-1", job, "endless-3"):
        namespace.wait_gone("configmaps", name)

    said = terminal.run("pool", "use", "local")
    assert "Jobs run on this machine." in said
    assert "image =" in (pool.directory / "config.toml").read_text()
    terminal.run("submit", "short.py", "--wait")
    assert pool.job("short-4").state == "COMPLETED"


def test_functions_need_the_python_of_the_notebook(
    pool: Pool, terminal: Terminal, kernel: Kernel, namespace: Namespace
) -> None:
    use(terminal, namespace, "--no-image")
    kernel.run(
        "import types\nimport jupyter_dlaas.kernel.submit as submit\n"
        "submit.sys = types.SimpleNamespace(version_info=(3, 99))\nsquares = [lambda x: x * x]"
    )
    sent = kernel.run("%%train wrong --push squares\nfor epoch in range(3):\n    print('epoch', squares[0](epoch))")
    job = sent.job["id"]
    until(lambda: pool.job(job).state.is_final)
    view = pool.job(job)

    assert view.failure is not None
    assert view.failure.code == "wrong_python"
    for word in ("Python 3.99", f"Python 3.{sys.version_info[1]}", namespace.cluster.image):
        assert word in view.failure.what
    assert "pool use kubernetes --image" in (view.failure.advice or "")
    assert view.restarts == 0
    assert "epoch" not in terminal.run("logs", job)
