"""`job.widget()`: core widgets, fed by one thread; chosen by itself where no extension of ours can run."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from jupyter_dlaas.api.jobs import Job, submit
from jupyter_dlaas.display import widget
from jupyter_dlaas.display.widget import JobWidget
from jupyter_dlaas.wire.protocol import ActionId
from tests.notebook_e2e.rooms import Pool, kernel_in, until

TRAINING = """
import time
import jupyter_dlaas as dlaas
run = dlaas.run()
for epoch in run.epochs(5000):
    for part in run.batches(list(range(64)), 16):
        time.sleep(0.01)
    run.log(loss=1 / (epoch + 1))
    print("<b>epoch</b>", epoch, flush=True)
"""


@pytest.fixture
def job(pool: Pool) -> Iterator[Job]:
    one = submit(TRAINING, name="shown", learners="1:2", start_with=1, client=pool.client)
    yield one
    if not one.view.state.is_final:
        one.cancel().wait(60, raise_on_failure=False)


def test_the_widget_shows_state_size_progress_metrics_and_log(job: Job) -> None:
    shown = JobWidget(job)
    shown.start()

    until(lambda: "Processing" in shown.head.value)
    until(lambda: "loss" in shown.head.value)
    until(lambda: "epoch" in shown.log.value)
    until(lambda: shown.size.value.startswith("1 "))
    assert "<b>epoch</b>" not in shown.log.value, "what a job prints is no HTML"
    shown.box.close()


def test_the_buttons_ask_the_pool(job: Job, pool: Pool) -> None:
    pool.until(job.id, "PROCESSING")
    shown = JobWidget(job)
    shown.start()
    until(lambda: not shown.more.disabled)

    shown.more.click()
    assert job.view.size.wish == 2
    until(lambda: pool.job(job.id).size.held == 2)
    shown.buttons[ActionId.HALT].click()
    pool.until(job.id, "HALTED")
    until(lambda: "Halted" in shown.head.value)
    assert shown.buttons[ActionId.RESUME].layout.display is None
    shown.buttons[ActionId.CANCEL].click()
    pool.until(job.id, "CANCELLED")
    until(lambda: "Cancelled" in shown.head.value)


def test_refusal_is_shown_beside_the_buttons(job: Job, pool: Pool) -> None:
    shown = JobWidget(job)
    job.cancel().wait(60, raise_on_failure=False)

    shown.more.click()

    assert "has ended" in shown.message.value


def test_the_thread_ends_with_the_job(job: Job) -> None:
    shown = JobWidget(job)
    thread = shown.start()

    job.cancel().wait(60, raise_on_failure=False)

    thread.join(30)
    assert not thread.is_alive()
    assert not [one for one in threading.enumerate() if one.name == f"dlaas-widget-{job.id}"]


@pytest.mark.parametrize(
    ("environ", "is_wanted"),
    [
        ({"VSCODE_PID": "7"}, True),
        ({"COLAB_RELEASE_TAG": "release"}, True),
        ({"VSCODE_PID": "7", "JPY_SESSION_NAME": "/home/mia/a.ipynb"}, False),
        ({}, False),
    ],
)
def test_it_is_chosen_where_no_extension_can_run(environ: dict[str, str], is_wanted: bool) -> None:
    assert widget.is_wanted({}, environ) is is_wanted


def test_vs_code_notebook_is_recognised() -> None:
    assert widget.is_wanted({"__vsc_ipynb_file__": "a.ipynb"}, {"JPY_SESSION_NAME": "a.ipynb"})


def test_vs_code_kernel_gets_the_widget_and_plain_output(pool: Pool) -> None:
    with kernel_in(pool.folder, VSCODE_PID="7") as kernel:
        kernel.run("%load_ext jupyter_dlaas")
        sent = kernel.run("%%train here --wait\nx = 1")

    forms = [set(one["data"]) for one in sent.displays]
    assert "text/html" in forms[0]
    assert "application/vnd.jupyter.widget-view+json" in forms[1]
