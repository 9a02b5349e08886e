"""Learners in pods on the test cluster: changes at the API server → card, pauses of survivors; beside the local pool.

The control plane is real, its nodes are process nodes. A page's delay begins before the request that changes the pod.
"""

from __future__ import annotations

import copy
import importlib.util
import json
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import websocket

from jupyter_dlaas.api.jobs import Job
from tests.bench.measuring import ROOT, Bench, Unmeasurable, milliseconds
from tests.bench.rows.talking import PATIENCE_S, page, percentile, state_changes
from tests.bench.table import Figure, Line, figure, ratio
from tests.kubernetes.api import Json
from tests.kubernetes.binaries import built_binaries
from tests.kubernetes.clusters import OwnCluster
from tests.kubernetes.conftest import NODES, RESTRICTED, Namespace, make_namespace
from tests.kubernetes.pool import ELASTIC_LOOP
from tests.whole.site import Site, until

CHANGES = 50
"""Changes of a pod's state; half as many in a browser."""
RESIZES = 10
STEPS = 20
"""Steps at a size before the next change."""
START_S = 180.0
SLEEPS = "import time\ntime.sleep(600)\n"
CARD = "[aria-label^='Job ']"
OBSERVE = f"""() => {{
  window.seenAt = {{}};
  const look = () => {{
    const found = document.querySelector("{CARD}")?.textContent.match(/change-\\d+/);
    if (found && !(found[0] in window.seenAt)) window.seenAt[found[0]] = Date.now();
  }};
  new MutationObserver(look).observe(document.body, {{ subtree: true, childList: true, characterData: true }});
}}"""


def measure(bench: Bench) -> Iterator[Line]:
    """Measure the cluster first, then the local pool in a site of its own with as many slots."""
    with _cluster() as (cluster, namespace):
        with _site(bench, "delays", namespace) as site:
            for node in cluster.nodes.values():
                node.start_delay_s = 3600.0  # the pod has a node, and its status is ours
            job = site.submit(SLEEPS, name="waits")
            until(lambda: _status(namespace, job), "its pod is on a node", START_S)
            changes = _changes(site, namespace, job)
            bench.site.client.pool()  # starts its engine
            beside = state_changes(bench, CHANGES // 2)
            yield _delay("state change at the API server → WebSocket client, p95", changes, beside)
            job.cancel()
            yield from _in_a_browser(site, namespace)
            for node in cluster.nodes.values():
                node.start_delay_s = 0.0
        with _site(bench, "pods", namespace) as site:
            pods = _pauses(site)
    with _site(bench, "processes", None) as site:
        processes = _pauses(site)
    yield _pause(f"pause of survivors at {RESIZES} planned changes, 3 to 4 pods", "median ≤ 100 ms", pods, processes)
    yield _pause("… where a pod leaves", "", pods[::2], processes[::2])
    yield _pause("… where a pod joins", "", pods[1::2], processes[1::2])


def _pause(what: str, bar: str, pods: list[float], processes: list[float]) -> Line:
    ours, theirs = figure(pods, "ms"), figure(processes, "ms")
    times = ratio(ours, theirs)
    return Line(what=what, bar=bar, measured=ours, beside="local pool", beside_figure=theirs, times=times)


@contextmanager
def _cluster() -> Iterator[tuple[OwnCluster, Namespace]]:
    binaries = built_binaries()
    if binaries is None:
        raise Unmeasurable("the test cluster is not built (make cluster)")
    cluster = OwnCluster(binaries)
    try:
        for name in NODES:
            cluster.add_node(name, resources={"nvidia.com/gpu": "2"})
        yield cluster, make_namespace(cluster, RESTRICTED)
    finally:
        cluster.close()


@contextmanager
def _site(bench: Bench, name: str, namespace: Namespace | None) -> Iterator[Site]:
    """Open a site whose jobs run in a namespace; without one, on this machine."""
    site = Site(bench.site.folder / name, slots=4)
    if namespace is not None:
        (site.pool / "config.toml").write_text(
            f'[kubernetes]\nnamespace = "{namespace.name}"\nkubeconfig = "{namespace.cluster.kubeconfig}"\n'
            f'image = "{namespace.cluster.image}"\ncpus = 0.1\nmemory = "1Gi"\nephemeral_storage = "1Gi"\n'
        )
    try:
        yield site
    finally:
        site.close()


# -- from a pod's status to the card ---------------------------------------------------------------------------------


def _delay(what: str, values: list[float], beside: list[float] | None) -> Line:
    ours = _p95(values)
    theirs = None if beside is None else _p95(beside)
    return Line(
        what=what,
        bar="≤ 2 s",
        measured=ours,
        beside=f"median {_short(values)} of {len(values)}" + ("" if beside is None else "; local pool, p95"),
        beside_figure=theirs,
        times="" if theirs is None else ratio(ours, theirs),
    )


def _p95(values: list[float]) -> Figure:
    return figure([percentile(values, 0.95)], "ms")


def _short(values: list[float]) -> str:
    return str(figure([sorted(values)[len(values) // 2]], "ms"))


def _status(namespace: Namespace, job: Job) -> Json | None:
    """Return the status of the job's only pod once its container is being created; None before."""
    path = f"/api/v1/namespaces/{namespace.name}/pods"
    listed = namespace.cluster.loop.run(namespace.cluster.api.request("GET", path))["items"]
    found = [pod["status"] for pod in listed if pod["metadata"]["name"] == f"{job.id}-m0"]
    return found[0] if found and found[0].get("containerStatuses") else None


def _change(namespace: Namespace, job: Job, status: Json, text: str) -> None:
    """Let the pod wait for another reason, as its kubelet would."""
    containers = copy.deepcopy(status["containerStatuses"])
    containers[0]["state"] = {"waiting": {"reason": "CreateContainerConfigError", "message": f'secret "{text}" absent'}}
    body = {"status": {"containerStatuses": containers}}
    patch = namespace.cluster.api.patch("pods", namespace.name, f"{job.id}-m0", body, subresource="status")
    namespace.cluster.loop.run(patch)


def _changes(site: Site, namespace: Namespace, job: Job) -> list[float]:
    """Measure the delay from each request that changes the pod to the message that a page receives."""
    status, late = _status(namespace, job), list[float]()
    assert status is not None
    with page(site) as stream:
        stream.send(json.dumps({"type": "subscribe", "job": job.id, "cursor": {}}))
        for number in range(CHANGES):
            time.sleep(random.uniform(0.0, 0.3))  # in no step with any interval
            began = time.monotonic_ns()
            _change(namespace, job, status, f"change-{number}-")
            late.append(milliseconds(began, _received(stream, f"change-{number}-")))
    return late


def _received(stream: websocket.WebSocket, text: str) -> int:
    """Return the time at which a message about the job has this text."""
    give_up = time.monotonic() + PATIENCE_S
    while time.monotonic() < give_up:
        raw = stream.recv()
        if text in str(raw):
            return time.monotonic_ns()
    raise Unmeasurable(f"{text} was not received in {PATIENCE_S:.0f} s")


def _in_a_browser(site: Site, namespace: Namespace) -> Iterator[Line]:
    if importlib.util.find_spec("playwright") is None:
        raise Unmeasurable("no browser")
    if not (ROOT / "jupyter_dlaas" / "labextension" / "static").is_dir():
        raise Unmeasurable("the front end is not built (make .make/front-end)")
    from tests.page.browser import Lab, a_browser

    with a_browser() as browser:
        lab = Lab.open(browser, site.serve())
        lab.notebook("bench.ipynb", ["%load_ext jupyter_dlaas", f"%%train waits --gpus 1\n{SLEEPS}"])
        lab.run(0)
        lab.ran(0)
        lab.run(1)
        found = lab.page.wait_for_selector(CARD, state="attached")
        job = site.job(((found and found.get_attribute("aria-label")) or "").removeprefix("Job "))
        status = until(partial(_status, namespace, job), "its pod is on a node", START_S)
        lab.page.evaluate(OBSERVE)
        began: dict[str, float] = {}
        for number in range(CHANGES // 2):
            time.sleep(random.uniform(0.0, 0.3))
            began[f"change-{number}"] = time.time() * 1000
            _change(namespace, job, status, f"change-{number}")
            lab.page.wait_for_function("key => key in window.seenAt", arg=f"change-{number}")
        seen: dict[str, float] = lab.page.evaluate("window.seenAt")
        job.cancel()
    late = [seen[key] - at for key, at in began.items()]
    yield _delay("… → card in the notebook (browser), p95", late, None)


# -- pauses ----------------------------------------------------------------------------------------------------------


def _pauses(site: Site) -> list[float]:
    """Return the milliseconds for which the learners that stayed made no step, at each planned change."""
    options = {"framework": "torch", "env": {"OMP_NUM_THREADS": "1"}, "name": "trains"}
    job = site.submit(ELASTIC_LOOP, learners="3:4", start_with=4, **options)
    try:
        _trains(job, 4)
        for size in [3, 4] * (RESIZES // 2):
            job.scale(size)
            _trains(job, size)
        pauses = [1000 * resize.idle_s for resize in job.view.resizes if resize.idle_s is not None]
    finally:
        job.cancel()
    if len(pauses) != RESIZES:
        raise Unmeasurable(f"{len(pauses)} changes of {RESIZES}")
    return pauses


def _trains(job: Job, learners: int) -> None:
    """Wait until the job has made some steps with so many learners."""

    def is_calm() -> bool:
        view = job.view
        return view.state == "PROCESSING" and view.transition is None and len(view.learners) == learners

    def steps() -> int:
        progress = job.view.progress
        return 0 if progress is None else progress.step or 0

    until(is_calm, f"{learners} learners train", START_S)
    begun = steps()
    until(lambda: steps() >= begun + STEPS, f"{learners} learners make steps", START_S)
