"""`%%train` in a real kernel, with a real engine, guardian and learner."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

import pytest

from jupyter_dlaas.client.discovery import engine_record
from jupyter_dlaas.wire.protocol import MIME
from tests.notebook_e2e.rooms import Kernel, Pool, displays_of, until


def test_a_cell_becomes_a_job_and_its_results_come_back(kernel: Kernel, pool: Pool) -> None:
    kernel.run("numbers = [1, 2, 3]")
    sent = kernel.run("%%train sums -o total,history\ntotal, history = 0, []\nfor n in numbers:\n    total += n\n"
                      "    history.append(total)", cell_id="a1b2")  # fmt: skip

    card = sent.displays[0]
    assert sorted(card["data"]) == [MIME, "text/html", "text/plain"]
    assert sent.job["name"] == "sums"
    assert sent.job["origin"]["cell_id"] == "a1b2"
    assert sent.result is None, "one card, not two"
    assert sent.displays[1]["data"]["text/plain"] == (
        f"total, history: will be assigned when {sent.job['id']} completes.\n"
        f"After a kernel restart: %dlaas attach {sent.job['id']}"
    )
    kernel.listen(lambda: displays_of(kernel, f"total, history: assigned from {sent.job['id']}."))
    assert kernel.value("(total, history)") == (6, [1, 3, 6])
    assert kernel.updates[card["transient"]["display_id"]][MIME]["job"]["state"] == "COMPLETED"


def test_result_of_a_class_in_the_training_cell_returns(kernel: Kernel, pool: Pool) -> None:
    sent = kernel.run("%%train own -o thing\nclass Thing:\n    size = 3\nthing = Thing()")

    kernel.listen(lambda: displays_of(kernel, f"thing: assigned from {sent.job['id']}."))
    assert kernel.value("(thing.size, 'Thing' in globals())") == (3, False)
    again = kernel.run("%%train next -o size\nsize = thing.size + 1")
    kernel.listen(lambda: displays_of(kernel, f"size: assigned from {again.job['id']}."))
    assert kernel.value("size") == 4


def test_unrestorable_class_of_a_result_is_reported_with_advice(kernel: Kernel, pool: Pool) -> None:
    sent = kernel.run("%%train own -o thing\nThing = type('Thing', (), {'__module__': '__main__'})\nthing = Thing()")

    kernel.listen(lambda: displays_of(kernel, "it needs `Thing`, which exists only in the job"))
    kernel.run("class Thing:\n    size = 3")
    assert kernel.value(f"dlaas.result('{sent.job['id']}', 'thing').size") == 3


def test_unstorable_result_is_reported_with_reason_and_advice(kernel: Kernel, pool: Pool) -> None:
    kernel.run("import weakref\nclass Net:\n    def state_dict(self):\n        return {'w': 1}")
    kernel.run("%%train own -o net\nnet = Net()\nnet.itself = weakref.ref(net)")

    kernel.listen(lambda: displays_of(kernel, "net: not returned: a Net cannot be stored (TypeError:"))
    (said,) = displays_of(kernel, "net: not returned")
    assert said.endswith("its state can be: net_state = net.state_dict() in the cell, and -o net_state.")


def test_the_job_is_the_cells_value(kernel: Kernel, pool: Pool) -> None:
    kernel.run("%%train value\nx = 1")

    assert re.fullmatch(r"value-\d+", kernel.value("_.id"))
    assert kernel.value("type(_).__name__") == "Job"
    pool.until("value", "COMPLETED")


def test_nothing_in_the_kernel_changes(kernel: Kernel, pool: Pool) -> None:
    kernel.run(
        "import os, random, sys\nimport numpy as np\nimport torch\n"
        "def seen():\n"
        "    hidden = {'_', '__', '___', '_i', '_ii', '_iii', '_ih', '_oh', '_dh', 'In', 'Out', 'before', 'after'}\n"
        "    names = {k: id(v) for k, v in get_ipython().user_ns.items()\n"
        "             if k not in hidden and not k.strip('_i').isdigit()}\n"
        "    return (names, random.getstate(), repr(np.random.get_state()), torch.get_rng_state().tolist(),\n"
        "            os.getcwd(), dict(os.environ), list(sys.path),\n"
        "            {n: p.detach().tolist() for n, p in model.named_parameters()})\n"
    )
    kernel.run("model = torch.nn.Linear(2, 2)\nopt = torch.optim.SGD(model.parameters(), lr=0.1)")
    kernel.run("before = seen()")

    kernel.run("%%train quiet --push model,opt\nopt.zero_grad()\nmodel(torch.ones(1, 2)).sum().backward()\nopt.step()")

    kernel.run("after = seen()")
    assert kernel.value("[a == b for a, b in zip(before, after)]") == [True] * 8
    pool.until("quiet", "COMPLETED")


def test_torch_model_of_earlier_cells_trains_with_the_api(kernel: Kernel, pool: Pool) -> None:
    kernel.run("import torch\nfrom torch import nn\nfrom torch.utils.data import TensorDataset")
    kernel.run(
        "torch.manual_seed(0)\nx = torch.randn(256, 4)\ny = (x.sum(dim=1) > 0).long()\ntrain_set = TensorDataset(x, y)"
    )
    kernel.run("model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))\n"
               "opt = torch.optim.SGD(model.parameters(), lr=0.5)")  # fmt: skip
    sent = kernel.run(
        "%%train net -o model,history --epochs 5\n"
        "run = dlaas.run()\n"
        "model, opt = run.prepare(model, opt)\n"
        "for epoch in run.epochs(5):\n"
        "    for a, b in run.batches(train_set, 64):\n"
        "        opt.zero_grad()\n"
        "        loss = nn.functional.cross_entropy(model(a), b)\n"
        "        loss.backward()\n"
        "        opt.step()\n"
        "    run.log(loss=loss)\n"
        "history = run.history\n"
    )
    assert [note["code"] for note in sent.job["notes"] if note["code"] == "elastic_hint"] == []

    kernel.run("dlaas.job('net').wait(90)")

    assert kernel.value("len(history['loss'])") == 5
    assert kernel.value("type(model).__name__") == "Sequential"
    assert kernel.value("(model(x).argmax(1) == y).float().mean().item() > 0.9")
    shown = kernel.run("dlaas.job('net')").displays[0]["data"]
    assert list(shown[MIME]["curves"]) == ["loss"]
    assert "loss" in shown["text/html"]


def test_rerun_cell_trains_the_returned_model(kernel: Kernel, pool: Pool) -> None:
    kernel.run("level, log = 1, []")
    cell = "%%train again -o level,log --wait\nlog = [level]\nlevel = level * 10"
    kernel.run(cell)
    assert kernel.value("(level, log)") == (10, [1])

    kernel.run(cell)

    source = kernel.run("%dlaas source again").stdout
    assert re.search(r'^level = dlaas\.result\("again-\d+", "level"\)$', source, re.MULTILINE)
    assert "log = dlaas.result" not in source
    assert kernel.value("(level, log)") == (100, [10])


def test_cell_that_uses_a_result_waits_for_it(kernel: Kernel, pool: Pool) -> None:
    kernel.run("%%train ahead -o answer\nanswer = 7")
    kernel.run("dlaas.job('ahead').wait(60)")
    assert kernel.value("answer") == 7


@pytest.mark.parametrize(
    "wait",
    [
        "dlaas.job('within').wait(60)",
        "for _ in dlaas.job('within').logs(follow=True):\n    pass",
        "while dlaas.job('within').status != 'COMPLETED':\n    time.sleep(0.1)",
        "%dlaas logs within -f",
    ],
)
def test_results_arrive_when_the_running_cell_learns_of_the_end(kernel: Kernel, pool: Pool, wait: str) -> None:
    kernel.run("answer, kept = 0, 0")
    kernel.run("%%train within -o answer,kept\nprint('trains')\nanswer, kept = 7, 7")

    cell = kernel.run(f"kept = 1\n{wait}\nprint('it is', answer, kept)\nanswer += 1")

    assert "it is 7 1" in cell.stdout, "a name that was rebound after the submission is left unchanged"
    assert kernel.value("(answer, kept)") == (8, 1), "the result is assigned once"


def test_result_arriving_before_a_cell_is_available_in_it(kernel: Kernel, pool: Pool, tmp_path: Path) -> None:
    goes_on = tmp_path / "goes-on"
    wait = f"import time\nfrom pathlib import Path\nwhile not Path({str(goes_on)!r}).exists():\n    time.sleep(0.01)"
    kernel.run(f"%%train between -o answer\n{wait}\nanswer = 7")
    kernel.run(
        f"""
import threading, time
from pathlib import Path
def ends_now():
    Path({str(goes_on)!r}).touch()
    while any(one.name.startswith("dlaas-between") for one in threading.enumerate()):
        time.sleep(0.01)
get_ipython().events.register("pre_execute", ends_now)
"""
    )

    try:
        assert kernel.value("answer") == 7
    finally:
        kernel.run('get_ipython().events.unregister("pre_execute", ends_now)')


def test_rebound_name_is_left_alone(kernel: Kernel, pool: Pool) -> None:
    kernel.run("%%train again -o mine\nimport time\ntime.sleep(0.5)\nmine = 'from the job'")
    kernel.run("mine = 'from here'")

    kernel.run("dlaas.job('again').wait(60)")
    kernel.listen(lambda: displays_of(kernel, "mine: left unchanged: it was rebound after the submission"))
    assert kernel.value("mine") == "from here"
    kernel.run("%dlaas attach again")
    assert kernel.value("mine") == "from the job"


def test_results_arrive_while_the_kernel_is_idle(kernel: Kernel, pool: Pool) -> None:
    kernel.run("%%train idle -o late\nimport time\ntime.sleep(0.3)\nlate = 7")

    kernel.listen(lambda: displays_of(kernel, "late: assigned from idle"))
    assert kernel.value("late") == 7


def test_results_arrive_although_the_engine_was_killed(kernel: Kernel, pool: Pool) -> None:
    kernel.run("%%train survivor -o late\nimport time\ntime.sleep(1)\nlate = 'still'")
    pool.until("survivor", "PROCESSING")
    os.kill(int(engine_record(pool.directory)["pid"]), signal.SIGKILL)

    kernel.listen(lambda: displays_of(kernel, "late: assigned from survivor"))
    assert kernel.value("late") == "still"


def test_pushed_objects_travel_as_one_graph(kernel: Kernel, pool: Pool) -> None:
    kernel.run(
        "import torch\nnet = torch.nn.Linear(1, 1, bias=False)\ntorch.nn.init.constant_(net.weight, 2.0)\n"
        "sgd = torch.optim.SGD(net.parameters(), lr=1.0)"
    )
    kernel.run(
        "%%train pushed --push net,sgd -o weight --wait\n"
        "net(torch.ones(1, 1)).sum().backward()\nsgd.step()\nweight = net.weight.item()"
    )

    assert kernel.value("weight") == 1.0, "the optimiser moved the very weights that were pushed"
    assert kernel.value("net.weight.item()") == 2.0


def test_own_modules_and_included_files_travel(kernel: Kernel, pool: Pool) -> None:
    work = pool.folder / "work"
    (work / "helper.py").write_text("def double(x):\n    return 2 * x\n")
    (work / "tables").mkdir()
    (work / "tables" / "rates.txt").write_text("0.5")
    kernel.run("import helper")
    kernel.run(
        "%%train files --include tables -o found --wait\n"
        "from pathlib import Path\n"
        "found = helper.double(4), helper.__file__, [p for p in __import__('sys').path if p.endswith('files')]"
    )

    double, path, folders = kernel.value("found")
    assert double == 8
    assert path == str(Path(folders[0]) / "helper.py"), "the copy, so that an edit during training changes nothing"
    assert (Path(folders[0]) / "tables" / "rates.txt").read_text() == "0.5"


def test_the_job_runs_where_and_as_the_kernel_does(kernel: Kernel, pool: Pool) -> None:
    kernel.run("import os\nos.environ.update(SET_IN_THE_KERNEL='yes')")
    assert kernel.value("os.environ['JPY_API_TOKEN']") == "secret"
    kernel.run(
        "%%train where -o seen_there --env ADDED=more --wait\n"
        "import os, sys\n"
        "wanted = ('SET_IN_THE_KERNEL', 'ADDED', 'JPY_API_TOKEN')\n"
        "seen_there = os.getcwd(), sys.executable, [os.environ.get(name) for name in wanted]"
    )

    assert kernel.value("seen_there") == (
        str(pool.folder / "work"),
        kernel.value("__import__('sys').executable"),
        ["yes", "more", None],
    )


def test_wait_shows_states_and_log_as_they_come(kernel: Kernel, pool: Pool) -> None:
    sent = kernel.run("%%train shown --wait\nfor n in range(3):\n    print('line', n)")

    assert "line 0\nline 1\nline 2\n" in re.sub(r"^shown-.*\n(  .*\n)*", "", sent.stdout, flags=re.MULTILINE)
    assert re.search(r"^shown-\d+  Completed", sent.stdout, re.MULTILINE)


def test_interrupt_detaches_with_a_message(kernel: Kernel, pool: Pool) -> None:
    asked = kernel.start("%%train long --wait\nimport time\nprint('it runs', flush=True)\ntime.sleep(60)")
    kernel.wait_for(asked, until_said="it runs")

    kernel.interrupt()

    rest = kernel.wait_for(asked)
    handle = pool.job("long").id
    assert rest.status == "ok", rest.traceback
    assert f"Detached: {handle} keeps running. To follow it: %dlaas attach {handle}" in rest.stdout
    pool.until("long", "PROCESSING")
    kernel.run("%dlaas cancel long")
    pool.until("long", "CANCELLED")


def test_failing_job_prints_cause_place_and_advice(kernel: Kernel, pool: Pool) -> None:
    sent = kernel.run("%%train wrong --wait -o never\nx = 1\nnever = x / 0", fails=True)

    handle, count = sent.job["id"], sent.job["origin"]["execution_count"]
    assert sent.status == "error"
    assert sent.traceback[0] == f"{handle} failed (your code): ZeroDivisionError: division by zero"
    assert sent.traceback[1] == f"Where: cell [{count}], line 3"
    assert sent.traceback[-1].startswith("What to do: ")
    assert "jupyter_dlaas" not in "\n".join(sent.traceback)
    kernel.listen(lambda: displays_of(kernel, f"never: not assigned because {handle} failed."))


def test_too_large_job_is_refused_with_the_available_devices(kernel: Kernel, pool: Pool) -> None:
    unit, total = pool.client.pool().unit, pool.client.pool().devices_total

    sent = kernel.run("%%train huge --gpus 1000\nrun = dlaas.run()", fails=True)

    assert f"requests 1,000 {unit}s, but the pool has only {total}." in sent.evalue
    assert sent.evalue.startswith("Not submitted: 1 error to fix first.\n- cell [")


def test_a_dry_run_shows_everything_and_starts_nothing(kernel: Kernel, pool: Pool) -> None:
    kernel.run("print('a picture')\nrate = 0.1")
    jobs = len(pool.client.jobs())
    asked = kernel.run("%%train maybe --dry-run --gpus 1:2 -o rate\nfor epoch in range(3):\n    rate *= 2\nprint(rate)")

    for said in (
        "  rate = 0.1\n",
        "Omitted\n",
        ": print('a picture')\n",
        "  maybe: 1 to 2 learners, 1 GPU (or CPU slot) each; the pool's placement\n",
        "  returns rate\n",
        "  would start now\n",
        "Nothing was submitted (--dry-run).",
    ):
        assert said in asked.stdout
    assert asked.displays == []
    assert len(pool.client.jobs()) == jobs


LOOP = """\
for epoch in range(2):
    for a, b in loader:
        sgd2.zero_grad()
        loss = ((net2(a) - b) ** 2).mean()
        loss.backward()
        sgd2.step()
"""
LOADER = """\
import torch
from torch.utils.data import DataLoader, TensorDataset
net2 = torch.nn.Linear(2, 1)
sgd2 = torch.optim.SGD(net2.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.ones(4, 2), torch.ones(4, 1)), batch_size=2)
"""


def test_plain_loop_gets_the_elastic_suggestion(kernel: Kernel, pool: Pool) -> None:
    kernel.run(LOADER)
    sent = kernel.run(f"%%train plain --wait --gpus 1:2\n{LOOP}")

    codes = [note["code"] for note in sent.job["notes"]]
    assert codes.index("starts_with_one") < codes.index("elastic_hint") < codes.index("suggest")
    hint = next(note["text"] for note in sent.job["notes"] if note["code"] == "elastic_hint")
    assert hint.splitlines()[1:] == [
        "    run = dlaas.run()",
        "    net2, sgd2 = run.prepare(net2, sgd2)",
        "    for epoch in run.epochs(2):",
        "        for a, b in run.batches(loader):",
        "        run.log(loss=loss)",
    ]


def test_suggest_shows_the_diff_and_submits_nothing(kernel: Kernel, pool: Pool) -> None:
    kernel.run(LOADER)
    jobs = len(pool.client.jobs())
    asked = kernel.run(f"%%train --suggest\n{LOOP}")

    (shown,) = asked.displays
    assert "\n-for epoch in range(2):\n" in shown["data"]["text/plain"]
    assert "\n+for epoch in run.epochs(2):\n" in shown["data"]["text/plain"]
    assert ">+    for a, b in run.batches(loader):</ins>" in shown["data"]["text/html"]
    assert len(pool.client.jobs()) == jobs


def test_impossible_suggestion_has_a_reason(kernel: Kernel) -> None:
    kernel.run(LOADER)
    (shown,) = kernel.run("%%train --suggest\nwhile True:\n    loss.backward()\n    sgd2.step()").displays

    assert shown["data"]["text/plain"].startswith("Nothing to suggest: cell [")
    assert "a `while` loop has no known length" in shown["data"]["text/html"]


def test_surprising_effects_are_reported_beforehand(kernel: Kernel, pool: Pool) -> None:
    kernel.run("import torch\nm = torch.nn.Linear(1, 1)\no = torch.optim.SGD(m.parameters(), lr=0.1)")
    trained = kernel.value("len(In)")
    kernel.run("for _ in range(2):\n    o.zero_grad()\n    m(torch.ones(1, 1)).sum().backward()\n    o.step()")
    asked = kernel.run("%%train warned --dry-run --gpus 1:2\ntorch.save(m, 'm.pt')")

    assert (
        f"cell [{trained + 1}], line 2: each of up to 2 learners runs torch.save(…), so they overwrite each "
        "other's file. Put it under `if run.is_main:`."
    ) in asked.stdout
    assert (
        f"cell [{trained}], line 1 trained `m` here, but the job starts with new weights. "
        f"Use --push m to send the current ones, or --with-cell {trained} to run that cell in the job."
    ) in asked.stdout


def test_the_verbs_of_dlaas(kernel: Kernel, pool: Pool) -> None:
    kernel.run(
        "%%train verbs --gpus 1:2\n"
        "run = dlaas.run()\n"
        "for epoch in run.epochs(2000):\n"
        "    for n in run.batches(list(range(64)), 16):\n"
        "        time.sleep(0.01)\n"
    )
    view = pool.until("verbs", "PROCESSING")
    handle = view.id

    def said(line: str) -> str:
        return kernel.run(f"%dlaas {line}").stdout

    assert re.search(rf"^{handle}\s+PROCESSING", said("jobs"), re.MULTILINE)
    assert "pool " in said("pool")
    assert "No jobs are waiting." in said("queue")
    node = json.loads(said("pool --json"))["nodes"][0]["name"]
    assert "To drain the node: %dlaas drain" in said(f"drain {node} --dry-run")
    assert "cordoned by" in said(f"cordon {node}")
    assert "cordoned by" not in said(f"uncordon {node}")
    assert re.search(r"^side +0 +2 +0 +0$", said("queue set side --weight 2"), re.MULTILINE)
    assert handle in said("scale verbs 1")
    assert handle in said("why verbs")
    assert "Submitted" in said("events verbs")
    assert "run.epochs(2000)" in said("source verbs")
    assert handle in said("halt verbs")
    pool.until("verbs", "HALTED")
    assert handle in said("resume verbs")
    pool.until("verbs", "PROCESSING")
    attached = kernel.run("%dlaas attach verbs")
    assert attached.job["id"] == handle
    assert handle in said("cancel verbs")
    pool.until("verbs", "CANCELLED")
    assert "verbs" in said("report verbs")
    assert re.search(r"verbs-\d+", said("retry verbs")) is not None
    said("cancel verbs")
    pool.until("verbs", "CANCELLED")
    card = attached.displays[0]["transient"]["display_id"]
    kernel.listen(lambda: kernel.updates.get(card, {MIME: {"job": {}}})[MIME]["job"].get("state") == "CANCELLED")


def test_following_a_log_can_be_interrupted(kernel: Kernel, pool: Pool) -> None:
    kernel.run("%%train chatty\nimport time\nprint('hello there', flush=True)\ntime.sleep(60)")
    asked = kernel.start("%dlaas logs chatty -f")
    kernel.wait_for(asked, until_said="hello there")

    kernel.interrupt()

    rest = kernel.wait_for(asked)
    handle = pool.job("chatty").id
    assert f"Detached: {handle} keeps running. To follow it: %dlaas attach {handle}" in rest.stdout
    kernel.run("%dlaas cancel chatty")
    pool.until("chatty", "CANCELLED")


def test_a_verb_for_a_job_that_is_not_there(kernel: Kernel, pool: Pool) -> None:
    missing = "there is no job 'missing'; run `%dlaas jobs` to list all jobs"
    assert kernel.run("%dlaas why missing", fails=True).evalue == missing
    assert kernel.run("%dlaas halt missing absent", fails=True).evalue.splitlines() == [
        missing,
        missing.replace("missing", "absent"),
        "halt succeeded for 0 of 2 jobs and failed for missing, absent",
    ]


def test_no_thread_is_left_after_all_jobs(kernel: Kernel, pool: Pool) -> None:
    until(lambda: all(view.state.is_final for view in pool.client.jobs()))
    kernel.run("import threading")

    ours = "[t.name for t in threading.enumerate() if t.name.startswith('dlaas-') and t.name != 'dlaas-engine-reaper']"
    until(lambda: kernel.value(ours) == [])
