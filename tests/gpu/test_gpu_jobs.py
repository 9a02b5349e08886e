"""Jobs on a real GPU, from the cell to the result: models, memory, failures and recovery. Not run without a GPU."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_dlaas.wire.protocol import Cause, JobView, State
from tests.gpu.one_gpu import divide_gpu
from tests.notebook_e2e.rooms import Kernel, Pool, displays_of, kernel_in, processes_of, until

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

SETUP = """
%load_ext jupyter_dlaas
import torch
from torch import nn
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
def data():
    g = torch.Generator().manual_seed(0)
    x = torch.randn(512, 8, generator=g)
    return x, (x.sum(dim=1) > 0).long()
def accuracy(net):
    x, y = data()
    return (net(x.to(next(net.parameters()).device)).argmax(1).cpu() == y).float().mean().item()
def error(net, part):
    return nn.functional.cross_entropy(net(part[0]), part[1])
def network():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
"""
PREPARED = """
model = network()
opt = torch.optim.Adam(model.parameters(), lr=0.01)
x, y = data()
run = dlaas.run()
model, opt = run.prepare(model, opt{exact})
where = str(next(model.parameters()).device)
for epoch in run.epochs({epochs}):
    for {batch} in run.batches(torch.utils.data.TensorDataset(x, y), 64):
        {step}
        {each}
    run.log(loss=loss)
"""
STEP = """opt.zero_grad()
        loss = nn.functional.cross_entropy(model(a.to(where)), b.to(where))
        loss.backward()
        opt.step()"""
EXACT_STEP = """opt.zero_grad()
        loss = run.train_step(lambda part: error(model, [tensor.to(where) for tensor in part]), batch, opt.step)"""
SLOWLY = "import time; time.sleep(0.01)"


def prepared(*, epochs: int, each: str = "pass", exact: bool = False) -> str:
    """Return the source of a prepared loop. each: a statement after each step; exact: the same weights at any size."""
    exactly = {"exact": ", shards=4", "step": EXACT_STEP, "batch": "batch"}
    usually = {"exact": "", "step": STEP, "batch": "a, b"}
    return PREPARED.format(epochs=epochs, each=each, **(exactly if exact else usually))


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    one = Pool(tmp_path_factory.mktemp("room"))
    yield one
    one.close()


@pytest.fixture(scope="module")
def kernel(pool: Pool) -> Iterator[Kernel]:
    with kernel_in(pool.folder, JUPYTER_DLAAS_WARM="1") as one:
        one.run(SETUP)
        yield one


def compute_processes() -> list[str]:
    """Process ids that hold a context on a GPU, as the driver lists them."""
    command = ["nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


def trained(pool: Pool, name: str) -> bool:
    """Tell if a job has finished an epoch."""
    return any("values" in record for record in pool.client.metrics(name)["records"])


def completed(pool: Pool, name: str) -> JobView:
    view: JobView = until(lambda: v if (v := pool.job(name)).state.is_final else None)
    log = pool.client.log(view.id, offset=-4000) if view.state is not State.COMPLETED else ""
    assert view.state is State.COMPLETED, (view.failure, log)
    return view


def test_the_pool_lends_the_gpu_by_its_uuid(kernel: Kernel, pool: Pool) -> None:
    kernel.run("%dlaas pool")
    (node,) = pool.client.pool().nodes

    names = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout
    assert all(device.id in names and device.kind in names for device in node.devices)
    assert [device.out_of_service for device in node.devices] == [None] * len(node.devices)
    assert all(device.memory_bytes > 2**30 for device in node.devices)


def test_a_prepared_model_trains_on_the_gpu_and_comes_back(kernel: Kernel, pool: Pool) -> None:
    sent = kernel.run("%%train prepared -o model,where --wait\n" + prepared(epochs=8))

    completed(pool, "prepared")
    assert kernel.value("where").startswith("cuda")
    assert kernel.value("accuracy(model)") > 0.9
    assert sent.job["size"]["max"] == 1


def test_a_usual_gpu_loop_trains_without_changes(kernel: Kernel, pool: Pool) -> None:
    kernel.run(
        "x, y = data()\nmodel = network().to(device)\nopt = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "scaler = torch.amp.GradScaler('cuda')\n"
        "loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), 64, shuffle=True,\n"
        "    num_workers=2, pin_memory=True)"
    )
    kernel.run(
        "%%train usual -o model,opt,scaler,peak --wait\n"
        "for epoch in range(5):\n"
        "    for a, b in loader:\n"
        "        a, b = a.to(device, non_blocking=True), b.to(device, non_blocking=True)\n"
        "        opt.zero_grad()\n"
        "        with torch.autocast('cuda', dtype=torch.float16):\n"
        "            loss = nn.functional.cross_entropy(model(a), b)\n"
        "        scaler.scale(loss).backward()\n"
        "        scaler.step(opt)\n"
        "        scaler.update()\n"
        "    print(f'epoch {epoch} loss {loss.item():.4f}')\n"
        "peak = torch.cuda.max_memory_allocated()\n"
    )

    completed(pool, "usual")
    assert kernel.value("peak") > 0
    assert kernel.value("next(model.parameters()).device.type") == "cuda"
    assert kernel.value("scaler.get_scale()") > 0
    assert kernel.value("accuracy(model)") > 0.8


def test_notebook_using_the_gpu_does_not_block_its_job(kernel: Kernel, pool: Pool) -> None:
    kernel.run("ballast = torch.ones(2**30, dtype=torch.uint8, device=device); torch.cuda.synchronize()")
    kernel.run("%%train beside --wait\nprint(torch.ones(2, device='cuda').sum())")
    completed(pool, "beside")
    kernel.run("del ballast; torch.cuda.empty_cache()")


def test_notebook_that_sees_no_gpu_uses_those_of_the_pool(tmp_path: Path) -> None:
    pool = Pool(tmp_path)
    try:
        with kernel_in(tmp_path, JUPYTER_DLAAS_WARM="1") as kernel:
            kernel.run("import os\nos.environ['CUDA_VISIBLE_DEVICES'] = ''\n" + SETUP)
            cell = "import os\nos.environ['CUDA_VISIBLE_DEVICES'] = '3'\n" + prepared(epochs=2)
            kernel.run("%%train away -o model,where --wait\n" + cell)
            completed(pool, "away")
            assert kernel.value("(where, next(model.parameters()).device.type)") == ("cuda:0", "cpu")
            assert "names GPUs that this job does not have" in pool.client.log(pool.job("away").id)["text"]
    finally:
        pool.close()


def test_halt_frees_the_gpu_and_resume_reaches_equal_weights(kernel: Kernel, pool: Pool) -> None:
    cell = prepared(epochs=40, each=SLOWLY, exact=True)
    kernel.run("%%train whole -o model,where --wait\n" + prepared(epochs=40, exact=True))
    completed(pool, "whole")
    kernel.run("undisturbed = [p.detach().cpu().clone() for p in model.parameters()]")

    kernel.run("%%train halted -o model\n" + cell)
    until(lambda: trained(pool, "halted"))
    pool.client.act("halted", "halt")
    pool.until("halted", State.HALTED)
    until(lambda: not [p for p in processes_of(pool.folder).values() if "learner" in p])
    pool.client.act("halted", "resume")
    view = completed(pool, "halted")
    kernel.listen(lambda: displays_of(kernel, f"model: assigned from {view.id}."))

    assert kernel.value("[bool(torch.equal(a, b.detach().cpu())) for a, b in zip(undisturbed, model.parameters())]"
                        ) == [True] * 4  # fmt: skip


def test_halted_loop_without_changes_resumes_to_equal_weights(kernel: Kernel, pool: Pool) -> None:
    prepare = (
        "torch.manual_seed(3)\nx, y = data()\n"
        "model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 2)).to(device)\n"
        "opt = torch.optim.AdamW(model.parameters(), lr=0.01)\n"
        "scaler = torch.amp.GradScaler('cuda', init_scale=2.0**18)\n"
        "loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), 64, shuffle=True)\n"
    )
    loop = (
        "for epoch in range(40):\n"
        "    for a, b in loader:\n"
        "        opt.zero_grad()\n"
        "        with torch.autocast('cuda', dtype=torch.float16):\n"
        "            loss = nn.functional.cross_entropy(model(a.to(device)), b.to(device))\n"
        "        scaler.scale(loss).backward()\n"
        "        scaler.step(opt)\n"
        "        scaler.update()\n"
        "        {each}\n"
        "    print(f'epoch {{epoch}} loss {{loss.item():.4f}}')\n"
    )
    kernel.run(prepare)
    kernel.run(loop.format(each="pass"))
    kernel.run("del loss; as_it_is = [p.detach().cpu().clone() for p in model.parameters()]")

    kernel.run(prepare)
    kernel.run("%%train interrupted -o model --checkpoint-every 1s\n" + loop.format(each=SLOWLY))
    until(lambda: trained(pool, "interrupted"))
    pool.client.act("interrupted", "halt")
    pool.until("interrupted", State.HALTED)
    pool.client.act("interrupted", "resume")
    view = completed(pool, "interrupted")
    kernel.listen(lambda: displays_of(kernel, f"model: assigned from {view.id}."))

    equal = "[bool(torch.equal(a, b.detach().cpu())) for a, b in zip(as_it_is, model.parameters())]"
    assert kernel.value(equal) == [True] * 4


def test_a_killed_learner_is_started_again(kernel: Kernel, pool: Pool) -> None:
    kernel.run("%%train killed\n" + prepared(epochs=30, each=SLOWLY))
    until(lambda: trained(pool, "killed"))
    victims = [pid for pid in map(int, compute_processes()) if pid in processes_of(pool.folder)]
    assert victims
    for pid in victims:
        os.kill(pid, signal.SIGKILL)

    view = completed(pool, "killed")
    assert view.restarts == 1


def test_full_gpu_memory_is_named_and_spoils_no_device(kernel: Kernel, pool: Pool) -> None:
    kernel.run(
        "%%train greedy\ntorch.cuda.set_per_process_memory_fraction(0.05)  # other tests use the GPU, too\nheld = []\n"
        "while True:\n    held.append(torch.ones(2**30, dtype=torch.uint8, device='cuda'))"
    )

    view = until(lambda: v if (v := pool.job("greedy")).state.is_final else None)
    assert view.state is State.FAILED
    assert (view.failure.code, view.failure.cause) == ("gpu_memory", Cause.RESOURCES)
    until(lambda: all(d.out_of_service is None and d.job is None for n in pool.client.pool().nodes for d in n.devices))


def test_an_assert_on_the_device_is_the_programs_fault(kernel: Kernel, pool: Pool) -> None:
    kernel.run(
        "%%train wrong_class\nscores = torch.zeros(4, 2, device='cuda', requires_grad=True)\n"
        "loss = nn.functional.cross_entropy(scores, torch.tensor([0, 1, 2, 7], device='cuda'))\n"
        "loss.backward()\nprint(loss.item())"
    )

    view = until(lambda: v if (v := pool.job("wrong_class")).state.is_final else None)
    assert view.state is State.FAILED
    assert view.failure.cause is Cause.YOUR_CODE, view.failure
    assert "class" in view.failure.advice or "label" in view.failure.advice, view.failure


def test_second_job_waits_for_the_gpu_naming_the_holder(kernel: Kernel, pool: Pool) -> None:
    kernel.run("%%train first\n" + prepared(epochs=10**6, each=SLOWLY))
    pool.until("first", State.PROCESSING)
    kernel.run("%%train second\nprint(torch.cuda.device_count())")
    reason = until(lambda: pool.job("second").reason)

    assert "GPU" in str(reason)
    pool.client.act("first", "cancel")
    completed(pool, "second")
    until(lambda: pool.job("first").state.is_final)
    assert not [pid for pid in map(int, compute_processes()) if pid in processes_of(pool.folder)]


def test_torch_compile_trains(kernel: Kernel, pool: Pool) -> None:
    kernel.run(
        "%%train compiled -o model --wait\n"
        + prepared(epochs=2).replace("model = network()", "model = torch.compile(network())"),
        timeout_s=180,
    )
    completed(pool, "compiled")


JAX = """
import jax, jax.numpy as jnp
w = jnp.zeros(8)
xs = jnp.ones((64, 8)); ys = xs.sum(1)
grad = jax.jit(jax.grad(lambda w: ((xs @ w - ys) ** 2).mean()))
for step in range(20):
    w = w - 0.01 * grad(w)
platform = jax.devices()[0].platform
"""
LIGHTNING = """
import lightning
class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = network()
    def training_step(self, batch, i):
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("loss", loss)
        return loss
    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)
net = Net()
trainer = lightning.Trainer(max_epochs=3, logger=False, enable_progress_bar=False)
trainer.fit(net, torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*data()), 64))
platform = str(trainer.strategy.root_device)
"""
TRAINER = """
from transformers import Trainer, TrainingArguments
class Wrapped(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = network()
    def forward(self, x, labels):
        logits = self.net(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}
rows = [{"x": a, "labels": b} for a, b in zip(*data())]
trainer = Trainer(Wrapped(), TrainingArguments("out", num_train_epochs=2, report_to=[], disable_tqdm=True),
    train_dataset=rows)
trainer.train()
platform = str(trainer.args.device)
"""
KERAS = """
import os
os.environ["KERAS_BACKEND"] = "{backend}"
import keras
net = keras.Sequential([keras.layers.Dense(16, activation="relu"), keras.layers.Dense(2)])
net.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
a, b = data()
net.fit(a.numpy(), b.numpy(), epochs=3, verbose=0)
platform = str(net.weights[0].value.device)
"""


@pytest.mark.parametrize(
    ("module", "cell"),
    [
        pytest.param("jax", JAX, id="JAX"),
        pytest.param("lightning", LIGHTNING, id="Lightning"),
        pytest.param("transformers", TRAINER, id="Trainer"),
        pytest.param("keras", KERAS.format(backend="torch"), id="Keras-torch"),
        pytest.param("keras", KERAS.format(backend="jax"), id="Keras-jax"),
    ],
)
def test_a_framework_finds_the_gpu(
    kernel: Kernel, pool: Pool, module: str, cell: str, request: pytest.FixtureRequest
) -> None:
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"no {module} here")
    name = request.node.callspec.id.lower().replace("-", "_")
    kernel.run(f"%%train {name} -o platform --wait\n{cell}", timeout_s=180)
    completed(pool, name)
    assert any(word in kernel.value("platform").lower() for word in ("cuda", "gpu"))


def test_learners_grow_and_shrink_on_one_gpu(tmp_path: Path) -> None:
    pool = Pool(tmp_path)
    divide_gpu(pool, 3)
    try:
        with kernel_in(tmp_path, JUPYTER_DLAAS_WARM="1") as kernel:
            kernel.run(SETUP)
            kernel.run("%%train elastic --gpus 1:3 -o model,where\n" + prepared(epochs=200, each=SLOWLY))
            until(lambda: pool.job("elastic").size.held == 3)
            until(lambda: trained(pool, "elastic"))
            pool.client.change("elastic", learners=1)
            until(lambda: pool.job("elastic").size.held == 1)
            pool.client.change("elastic", learners=2)
            until(lambda: pool.job("elastic").size.held == 2)
            view = completed(pool, "elastic")
            assert view.restarts == 0
    finally:
        pool.close()
