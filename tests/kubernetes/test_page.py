"""A notebook whose pool is a cluster, in a real browser: JupyterLab, engine and guardians here, learners in pods."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from jupyter_dlaas.wire.protocol import JobView
from tests.kubernetes.api import Json
from tests.kubernetes.conftest import Namespace
from tests.page.browser import Lab, a_browser
from tests.page.conftest import EXPOSED
from tests.whole.conftest import ground
from tests.whole.site import Site, standing, until

__all__ = ["ground"]

pytestmark = [pytest.mark.cluster, pytest.mark.page, pytest.mark.timeout(300)]

RESULT_BYTES = 200_000_000
SETUP = """\
%load_ext jupyter_dlaas
import os, time, torch
torch.manual_seed(0)
train_set = torch.utils.data.TensorDataset(torch.randn(48, 8), torch.randint(0, 2, (48,)))
model = torch.nn.Linear(8, 2)
opt = torch.optim.SGD(model.parameters(), lr=0.1)"""
TRAIN = f"""\
%%train pods --gpus 2:3 -o weights
run = dlaas.run()
model, opt = run.prepare(model, opt)
is_resumed = int(os.environ["DLAAS_MEMBER"]) >= 5
left = 20
for epoch in run.epochs(100_000):
    for x, y in run.batches(train_set, 12):
        opt.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        run.log(loss=loss)
        time.sleep(0.02)
    left -= is_resumed
    if not left:
        break
weights = torch.arange({RESULT_BYTES // 4}, dtype=torch.int32)"""
COMPARE = f"print(weights.nbytes, torch.equal(weights, torch.arange({RESULT_BYTES // 4}, dtype=torch.int32)))"
PRINTED = "".join(
    f"line {number} of 40000, with enough text to fill more than one buffer\n" for number in range(40_000)
)
LARGE = f"""\
import os
text = {"x" * 3_000_000!r}
for number in range(40_000):
    print(f"line {{number}} of 40000, with enough text to fill more than one buffer")
print(len(text), flush=True)
os._exit(3)
"""


@pytest.fixture
def site(ground: Path, tmp_path: Path, namespace: Namespace) -> Iterator[Site]:
    with standing(ground, f"cluster-{namespace.name}", tmp_path) as made:
        (made.pool / "config.toml").write_text(
            f'[kubernetes]\nnamespace = "{namespace.name}"\nkubeconfig = "{namespace.cluster.kubeconfig}"\n'
            f'image = "{namespace.cluster.image}"\ncpus = 0.1\nmemory = "1Gi"\nephemeral_storage = "1Gi"\n'
        )
        yield made


@pytest.fixture
def lab(site: Site) -> Iterator[Lab]:
    with a_browser() as browser:
        made = Lab.open(browser.new_context(viewport={"width": 1300, "height": 1150}), site.serve(EXPOSED))
        yield made
        assert made.errors == []


def pods(namespace: Namespace, job: str, *members: int) -> dict[int, Json]:
    """Return the pods of these members, all of which exist."""
    return {member: namespace.get("pods", f"{job}-m{member}") for member in members}


def identities(found: dict[int, Json]) -> dict[int, tuple[str, ...]]:
    """Return uid and start time of pods and of their containers."""
    started = {m: pod["status"]["containerStatuses"][0] for m, pod in found.items()}
    return {
        member: (
            pod["metadata"]["uid"],
            pod["status"]["startTime"],
            started[member]["containerID"],
            started[member]["state"]["running"]["startedAt"],
        )
        for member, pod in found.items()
    }


def steps(view: JobView) -> int:
    return 0 if view.progress is None else view.progress.step or 0


def trains_with(site: Site, job: str, *members: int) -> bool:
    view = site.job(job).view
    is_calm = view.state == "PROCESSING" and view.transition is None
    return is_calm and sorted(learner.member for learner in view.learners) == list(members)


def train_on(site: Site, job: str) -> None:
    before = steps(site.job(job).view)
    until(lambda: steps(site.job(job).view) > before + 5, "it trains on")


def pictures(lab: Lab, name: str) -> None:
    """Take pictures if DLAAS_PICTURES names a folder for them."""
    if folder := os.environ.get("DLAAS_PICTURES"):
        lab.panel()
        lab.shot(Path(folder) / f"{name}.png")


def test_notebook_trains_grows_halts_and_resumes_in_pods(lab: Lab, site: Site, namespace: Namespace) -> None:
    lab.notebook("pods.ipynb", [SETUP, TRAIN, COMPARE])
    lab.run(0)
    lab.ran(0)
    lab.run(1)
    found = lab.page.wait_for_selector('[aria-label^="Job pods-"]', state="attached")
    job = ((found and found.get_attribute("aria-label")) or "").removeprefix("Job ")
    card = lab.card(job)
    lab.is_at(job, "PROCESSING")
    until(lambda: trains_with(site, job, 0, 1, 2), "the free GPUs are used")
    expect(lab.panel()).to_contain_text(re.compile("Pool *kubernetes"))
    expect(lab.panel()).to_contain_text(f"Jobs run on Kubernetes: namespace {namespace.name}, context ")
    pictures(lab, "running-light")
    card.get_by_role("button", name=f"Remove a GPU from {job}").click()
    until(lambda: trains_with(site, job, 0, 1), "two pods train")
    train_on(site, job)
    before = identities(pods(namespace, job, 0, 1))

    card.get_by_role("button", name=f"Add a GPU to {job}").click()
    until(lambda: trains_with(site, job, 0, 1, 3), "three pods train")
    assert identities(pods(namespace, job, 0, 1)) == before
    expect(card.get_by_role("spinbutton")).to_have_attribute("aria-valuenow", "3")
    train_on(site, job)

    namespace.delete("pods", f"{job}-m1", grace_s=0)
    until(lambda: trains_with(site, job, 0, 3, 4), "the deleted pod is replaced")
    assert identities(pods(namespace, job, 0)) == {0: before[0]}
    train_on(site, job)
    pauses = [resize.idle_s for resize in site.job(job).view.resizes]
    print("pauses of survivors at planned changes:", pauses)
    pictures(lab, "replaced-light")

    card.get_by_role("button", name="Halt").click()
    lab.is_at(job, "HALTED")
    halted_at = steps(site.job(job).view)
    for member in (0, 3, 4):
        namespace.wait_gone("pods", f"{job}-m{member}")
    pictures(lab, "halted-light")
    card.get_by_role("button", name="Resume").click()
    lab.is_at(job, "COMPLETED")

    view, metrics = site.job(job).view, site.job(job).metrics()
    assert [row["step"] for row in metrics] == list(range(1, steps(view) + 1)), "each step is logged once"
    assert steps(view) > halted_at > 0
    assert view.restarts == 0
    lab.run(2)
    lab.ran(2)
    expect(lab.cell(2).locator(".jp-OutputArea")).to_contain_text(f"{RESULT_BYTES} True")
    pictures(lab, "completed-light")
    lab.dark()
    pictures(lab, "completed-dark")


def test_large_program_leaves_all_that_it_printed(site: Site) -> None:
    job = site.submit(LARGE, name="large")
    until(lambda: job.view.state.is_final, "it has ended")

    assert job.view.failure is not None
    log = job.logs()
    before, printed, after = log.partition(PRINTED)
    assert printed, log[-2000:]
    assert "line " not in before + after
    assert after.startswith("3000000\n")
    (stored,) = (site.pool / "jobs" / job.id).glob("learner-*/stdout.log")
    assert stored.read_bytes().count(PRINTED.encode()) == 1
