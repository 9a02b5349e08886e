"""State of a loop over halts: a job that is halted ends as one that is not, or reports what differs."""

from __future__ import annotations

import copyreg
import random
from pathlib import Path
from textwrap import dedent, indent
from typing import Any, Final, NamedTuple

import pytest
import torch

from jupyter_dlaas.learner.checkpoint import checkpoint_files
from jupyter_dlaas.learner.checkpoint.object_graph import ObjectGraph, Undone
from jupyter_dlaas.learner.control.guardian_channel import Control
from jupyter_dlaas.learner.elastic.gradient_snapshot import UnpreparedGradients
from jupyter_dlaas.objects.object_kinds import Changes, Skipped
from jupyter_dlaas.objects.process_activity import read_activity
from jupyter_dlaas.transfer import torch_layers
from tests.learner.in_process import SETUP, run_with_halts, start


class Part(NamedTuple):
    """Lines of a program, and what they leave behind."""

    result: str
    step: str = ""
    epoch: str = ""
    cell: str = ""
    """In the training cell, above its loop."""
    above: str = ""
    """In a cell above it."""


PARTS: Final = {
    "ema by hand": Part(
        "flat(ema)",
        "for a, b in zip(ema.parameters(), model.parameters()): a.data.mul_(0.9).add_(b.data, alpha=0.1)",
        above="ema = copy.deepcopy(model)",
    ),
    "ema made in the training cell": Part(
        "flat(shadow)",
        "for name, p in model.named_parameters(): shadow[name] = 0.9 * shadow[name] + 0.1 * p.detach()",
        cell="shadow = {name: p.detach().clone() for name, p in model.named_parameters()}",
    ),
    "averaged model": Part(
        "(flat(avg.module), int(avg.n_averaged))",
        "avg.update_parameters(model)",
        above="avg = swa_utils.AveragedModel(model, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.9))",
    ),
    "reference of the first weights": Part("flat(initial)", cell="initial = copy.deepcopy(model)"),
    "plateau": Part(
        "rates",
        epoch="plateau.step(1.0); rates.append(opt.param_groups[0]['lr'])",
        cell="plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, patience=0, factor=0.5); rates = []",
    ),
    "schedule above": Part(
        "opt.param_groups[0]['lr']",
        "schedule.step()",
        above="schedule = torch.optim.lr_scheduler.ExponentialLR(opt, 0.98)",
    ),
    "schedule with a lambda": Part(
        "opt.param_groups[0]['lr']",
        epoch="warm.step()",
        cell="base = opt.param_groups[0]['lr']; warm = lr_scheduler.LambdaLR(opt, lambda n: 1 / (1 + n * base))",
    ),
    "schedules in a row": Part(
        "rates",
        "plan.step(); rates.append(opt.param_groups[0]['lr'])",
        cell="""
            parts = [lr_scheduler.LinearLR(opt), lr_scheduler.OneCycleLR(opt, 0.1, total_steps=90)]
            plan, rates = lr_scheduler.SequentialLR(opt, parts, [3]), []
        """,
    ),
    "a gradient scaler": Part(
        "(scaler.state_dict(), flat(side))",
        "side_opt.zero_grad(); scaler.scale(side.sum()).backward(); scaler.step(side_opt); scaler.update()",
        above="""
            scaler = torch.amp.GradScaler("cpu", 8.0, growth_interval=3)
            side = nn.Parameter(torch.ones(2)); side_opt = torch.optim.SGD([side], lr=0.01)
        """,
    ),
    "a metric that is a module": Part(
        "(mean.total.item(), flat(mean.outputs))",
        "mean.update(loss.detach())",
        above="""
            class Mean(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.total, self.outputs = torch.zeros(()), []
                def update(self, value): self.total = self.total + value; self.outputs.append(value)
            mean = Mean()
        """,
    ),
    "early stopping": Part(
        "(stopper.best, stopper.bad, flat(stopper.weights), stopper.model is model, Stopper.seen)",
        epoch="stopper(loss.item())",
        above="""
            class Stopper:
                seen = 0
                def __init__(self, model):
                    self.model, self.best, self.bad, self.weights = model, 1e9, 0, None
                def __call__(self, loss):
                    Stopper.seen += 1
                    if loss < self.best:
                        self.best, self.weights = loss, copy.deepcopy(self.model.state_dict())
                    else:
                        self.bad += 1
            stopper = Stopper(model)
        """,
    ),
    "best weights": Part(
        "(best, flat(best_weights))",
        "if loss.item() < best: best, best_weights = loss.item(), copy.deepcopy(model.state_dict())",
        cell="best, best_weights = float('inf'), None",
    ),
    "aliases": Part(
        "(alias is history, holder['a'] is history, pair[0] is history, history['loss'])",
        "history['loss'].append(loss.item())",
        above="history = {'loss': []}; alias = history; holder = {'a': history}; pair = (history, 1)",
    ),
    "an alias made in the loop": Part(
        "(last is stack[-1], len(stack), flat(last))",
        epoch="last = copy.deepcopy(model); stack.append(last)",
        cell="stack, last = [], None",
    ),
    "numpy's generator": Part(
        "drawn", "drawn.append(rng.random())", above="rng = np.random.default_rng(3); drawn = []"
    ),
    "an unseeded generator": Part(
        "len(free)", "free.append(any_rng.random())", cell="any_rng = np.random.default_rng(); free = []"
    ),
    "generators of all libraries": Part(
        "(draws, alias_rng is sources['py'])",
        "draws.extend([sources['py'].random(), sources['np'].rand(), torch.rand(1, generator=sources['t']).item()])",
        above="""
            sources = {"py": random.Random(1), "np": np.random.RandomState(2), "t": torch.Generator().manual_seed(3)}
            alias_rng, draws = sources["py"], []
        """,
    ),
    "global streams": Part(
        "noise",
        "noise.append((random.random(), float(np.random.rand()), float(torch.rand(1))))",
        cell="noise = []",
    ),
    "counters": Part(
        "(total, next(numbers), ticks['n'])",
        "total += next(numbers); ticks['n'] += 1",
        cell="total = 0",
        above="numbers = itertools.count(5); ticks = collections.Counter()",
    ),
    "a closure": Part(
        "(count(), same())",
        "count()",
        above="""
            def counter():
                n = 0
                def count():
                    nonlocal n
                    n += 1
                    return n
                return count
            count = counter()
            same = count
        """,
    ),
    "an attribute of a function": Part("note.calls", "note()", above="def note(): note.calls += 1\nnote.calls = 0"),
    "a replay buffer": Part(
        "[(flat(x), float(y)) for x, y in buffer]",
        "buffer.append((batch[0].clone(), loss.detach()))",
        above="buffer = collections.deque(maxlen=3)",
    ),
    "a buffer in an array": Part(
        "(ring.tolist(), at)",
        "ring[at % 4] = loss.item(); at += 1",
        above="ring = np.zeros(4)",
        cell="at = 0",
    ),
    "an attribute of the model": Part(
        "(model.seen, model.memory)",
        "model.seen += 1; model.memory.append(loss.item())",
        above="model.seen = 0; model.memory = []",
    ),
    "an attribute that is new": Part("model.best", epoch="model.best = {'loss': loss.item()}"),
    "layers that thaw": Part(
        "([p.requires_grad for p in model.parameters()], flat(model))",
        epoch="if epoch == 1: model[0].requires_grad_(True)",
        above="model[0].requires_grad_(False)",
    ),
    "a head that is replaced": Part(
        "(flat(head), [len(group['params']) for group in other.param_groups])",
        "other.zero_grad(); head(batch[0]).sum().backward(); other.step()",
        "if epoch == 1: head = nn.Linear(4, 3); other.add_param_group({'params': list(head.parameters())})",
        cell="head = nn.Linear(4, 2); other = torch.optim.Adam(head.parameters(), lr=0.01)",
    ),
    "a second optimiser": Part(
        "(flat(critic), flat(critic_opt.state_dict()))",
        "critic_opt.zero_grad(); critic(batch[0]).pow(2).sum().backward(); critic_opt.step()",
        above="critic = nn.Linear(4, 1); critic_opt = torch.optim.Adam(critic.parameters(), lr=0.01)",
    ),
    "a metric": Part(
        "(metric.value(), tracker.metrics[0] is metric)",
        "metric.update(loss.item())",
        above="""
            class Slotted:
                __slots__ = ("total", "count")
                def __init__(self): self.total, self.count = 0.0, 0
                def update(self, value): self.total += value; self.count += 1
                def value(self): return self.total / max(self.count, 1)
            class Tracker:
                def __init__(self, metric): self.metrics = [metric]
            metric = Slotted()
            tracker = Tracker(metric)
        """,
    ),
    "run.state": Part(
        "(run.state['k']['n'], run.state['ema'] is twin, flat(twin))",
        "run.state['k']['n'] += 1; twin.weight.data.add_(1)",
        above="twin = nn.Linear(2, 2)",
        cell="run.state.setdefault('k', {'n': 0}); run.state['ema'] = twin",
    ),
    "a deleted name": Part("'gone' in globals()", epoch="globals().pop('gone', None)", above="gone = [1]"),
    "an object that says how it is pickled": Part(
        "(own.n, own_alias is own, box['own'] is own)",
        "own.add()",
        above="""
            class Own:
                def __init__(self, n=0): self.n = n
                def add(self): self.n += 1
                def __reduce__(self): return Own, (self.n,)
            own = Own()
            own_alias, box = own, {"own": own}
        """,
    ),
    "a list that is walked": Part(
        "walked", "walked.append(next(items, None))", above="items = iter([5, 6, 7, 8, 9] * 9); walked = []"
    ),
    "a file that is read": Part("lines", "lines.append(file.readline())", above="file = open(__file__); lines = []"),
}

PROGRAM: Final = (
    SETUP
    + """
def flat(one):
    one = one.state_dict() if hasattr(one, "state_dict") else one
    if isinstance(one, dict):
        return {key: flat(part) for key, part in one.items()}
    if isinstance(one, (list, tuple)):
        return [flat(part) for part in one]
    return one.tolist() if hasattr(one, "tolist") else one
torch.manual_seed(0)
data = torch.randn(20, 4)
model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1))
opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
ABOVE
if __name__ == "__main__":
    run = dlaas.run()
    model, opt = run.prepare(model, opt)
CELL
    for epoch in run.epochs(3):
        for batch in run.batches((data,), 6):
            loss = model(batch[0]).pow(2).mean()
            opt.zero_grad(); loss.backward(); opt.step()
STEP
EPOCH
    result = {RESULT}
"""
)


def program(*names: str, is_in_function: bool = False) -> str:
    """Return a program with these parts. `is_in_function`: its loop is in a function, with that function's locals."""
    parts = [PARTS[name] for name in names]

    def lines(field: str, deep: int) -> str:
        return "".join(indent(dedent(getattr(part, field)).strip("\n") + "\n", " " * deep) for part in parts)

    found = PROGRAM.replace("ABOVE\n", lines("above", 0)).replace("CELL\n", lines("cell", 4))
    found = found.replace("STEP\n", lines("step", 12)).replace("EPOCH\n", lines("epoch", 8))
    found = found.replace(
        "RESULT", ", ".join(f"{name!r}: {part.result}" for name, part in zip(names, parts, strict=True))
    )
    if not is_in_function:
        return found
    head, cell = found.split('if __name__ == "__main__":\n')
    call = 'if __name__ == "__main__":\n    result = train(model, opt)\n'
    return f"{head}def train(model, opt):\n{cell}    return result\n{call}"


def result_of(folder: Path, source: str, halts: tuple[int, ...] = ()) -> Any:
    return run_with_halts(folder, source, halts)["result"]


@pytest.mark.parametrize("name", PARTS)
def test_twice_halted_job_ends_like_an_undisturbed_one(tmp_path: Path, name: str) -> None:
    source = program(name)
    assert result_of(tmp_path / "halted", source, (2, 3)) == result_of(tmp_path / "alone", source)


GLOBAL_ONLY: Final = {"a deleted name"}


@pytest.mark.parametrize("seed", range(12))
def test_random_programs_with_random_halts_end_as_without(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    is_in_function = chance.random() < 0.5
    usable = [name for name in PARTS if not (is_in_function and name in GLOBAL_ONLY)]
    names = chance.sample(usable, chance.randint(3, 8))
    halts = tuple(chance.randint(0, 4) for _ in range(chance.randint(1, 3)))
    source = program(*names, is_in_function=is_in_function)
    found = result_of(tmp_path / "halted", source, halts)
    expected = result_of(tmp_path / "alone", source)
    assert {name: found[name] for name in names if found[name] != expected[name]} == {}, (halts, is_in_function)


LOOP: Final = program("counters").replace("    result = ", "    counted = ")


def test_running_iterator_is_reported_before_training(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    source = LOOP.replace("if __name__", "def forever():\n    while True: yield 1\nones = forever()\nif __name__", 1)
    source = source.replace("total += next(numbers)", "total += next(ones)")
    start(tmp_path, source, stop_at=3)
    messages = [line for line in capfd.readouterr().err.splitlines() if line.startswith("[")]
    assert len(messages) == 1
    assert messages[0].startswith("[`ones` would restart from its first item after a halt")
    assert "run.batches" in messages[0]


def test_file_truncated_on_open_is_reported(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    files = f"table = open('{tmp_path}/table', 'w'); journal = open('{tmp_path}/journal', 'a')\n"
    source = LOOP.replace("if __name__", f"{files}if __name__", 1).replace(
        "total += next(numbers)",
        f"print(1, file=table)\n            with open('{tmp_path}/a', 'w') as note: note.write('1')",
    )
    start(tmp_path, source, stop_at=3)
    messages = [line for line in capfd.readouterr().err.splitlines() if line.startswith("[")]
    assert len(messages) == 1
    assert messages[0].startswith("[`table` is open for writing")


def test_dropout_that_cudnn_draws_is_reported_before_training(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_layers, "CUDNN_DEVICES", {"cpu"})  # this machine may have no GPU
    layers = "net, gru = nn.LSTM(2, 2, num_layers=2, dropout=0.5), nn.GRU(2, 2); dlaas.run().prepare(net, gru)\n"
    start(tmp_path, LOOP.replace("if __name__", f"{layers}if __name__", 1), stop_at=3)
    messages = [line for line in capfd.readouterr().err.splitlines() if line.startswith("[")]
    assert len(messages) == 1
    assert messages[0].startswith("[`LSTM` draws dropout between its recurrent layers from a state of cuDNN")


@pytest.mark.parametrize(
    "line",
    ["bar = __import__('tqdm').tqdm(total=3)", "lock = __import__('threading').Lock()", "log = print", "f = lambda: 0"],
)
def test_recreated_object_is_not_reported(tmp_path: Path, capfd: pytest.CaptureFixture[str], line: str) -> None:
    source = LOOP.replace("ABOVE", "").replace("if __name__", f"{line}\nif __name__", 1)
    source = source.replace("total += next(numbers)", f"{line}; total += 1")
    start(tmp_path, source, stop_at=3)
    assert not [line for line in capfd.readouterr().err.splitlines() if line.startswith("[")]


def test_unstorable_object_is_reported_once_and_others_kept(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    source = LOOP.replace("total += next(numbers)", "kept['walk'] = (i for i in range(3)); kept['n'] += 1; total += 1")
    source = source.replace("total = 0", "total = 0; kept = {'n': 0}").replace(
        "counted = {", "result = {'kept': kept['n'], "
    )
    assert run_with_halts(tmp_path, source, (2, 2))["result"]["kept"] == 12
    out = capfd.readouterr().err
    assert (
        out.count("Checkpoints of this job cannot keep `kept.walk` (TypeError: cannot pickle 'generator' object") == 2
    )


def test_batches_and_activations_are_not_in_the_checkpoint(tmp_path: Path) -> None:
    source = LOOP.replace("loss = model(batch[0])", "out = torch.zeros(1_000_000); loss = model(batch[0])")
    start(tmp_path, source, stop_at=3)
    assert next(tmp_path.glob("checkpoints/step-*/state.bin")).stat().st_size < 100_000


def test_data_that_did_not_change_is_not_in_the_checkpoint(tmp_path: Path) -> None:
    source = LOOP.replace(
        "if __name__", "table = torch.ones(1_000_000); rows = [table, np.ones(10**6)]\nif __name__", 1
    )
    start(tmp_path, source, stop_at=3)
    assert next(tmp_path.glob("checkpoints/step-*/state.bin")).stat().st_size < 100_000


BROKEN: Final = """
class Fragile:
    def __init__(self, n): self.n = n
    def __reduce__(self): return _again, (self.n,)
def _again(n):
    if n > LIMIT: raise RuntimeError("it cannot be made again")
    return Fragile(n)
box, hits = {}, 0
"""


@pytest.mark.parametrize(("limit", "steps"), [(4, 4), (0, 6)])
def test_checkpoint_with_an_unloadable_object_costs_no_work(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, limit: int, steps: int
) -> None:
    begun: list[int] = []
    monkeypatch.setattr(
        Control, "update_state", lambda control, **state: begun.extend([state["step"]] if "step" in state else [])
    )
    source = LOOP.replace("if __name__", BROKEN + "if __name__", 1).replace("LIMIT", str(limit))
    source = source.replace("total += next(numbers)", "hits += 1; box['one'] = Fragile(hits); total += 1")
    source = source.replace("counted = {", "result = {'hits': hits, 'weights': flat(model), ")
    for stop_at in (4, 2):
        assert start(tmp_path, source, stop_at=stop_at) is None
    found = start(tmp_path, source)
    out = capfd.readouterr().err
    assert found is not None
    assert found["run"].step == 12
    assert begun == [0, 4, limit or 6], "what the guardian hears is the step of the checkpoint that was used"
    assert "RuntimeError: it cannot be made again" in out
    if limit:
        assert "The checkpoint of step 6 cannot be loaded" in out
        assert "that of step 4 is used" in out
        assert found["result"]["hits"] == 12
        assert found["result"]["weights"] == start(tmp_path / "alone", source)["result"]["weights"]  # type: ignore[index]
    else:
        assert "start from their initial values" in out
        assert found["result"]["hits"] == 12 - steps


def test_generators_that_each_learner_seeds_itself_stay_apart(tmp_path: Path) -> None:
    source = LOOP.replace("total = 0", "total = 0; own = random.Random(run.rank); shared = random.Random(7)")
    source = source.replace("total += next(numbers)", "own.random(); shared.random()")
    source = source.replace("counted = {", "result = {'own': own.random(), 'shared': shared.random(), ")
    start(tmp_path, source, stop_at=3)
    first, second = (start(tmp_path, source, rank=rank) for rank in (0, 1))
    assert first is not None
    assert second is not None
    assert first["result"]["own"] != second["result"]["own"]
    assert first["result"]["shared"] == second["result"]["shared"]


WITH_TWO: Final = LOOP.replace(
    "if __name__", "critic = nn.Linear(4, 1); other = torch.optim.SGD(critic.parameters(), lr=0.1)\nif __name__", 1
).replace("counted = {", "result = {'weights': flat(model), 'critic': flat(critic), ")
GRADIENTS: Final = {
    "accumulated": "loss.backward()\n            if run.step % 3 == 0: opt.step(); opt.zero_grad()",
    "cleared at the head of a window": """
            if run.step % 3 == 1: opt.zero_grad()
            loss.backward()
            if run.step % 3 == 0: opt.step()""",
    "never cleared": "loss.backward(); opt.step()",
    "beside another optimiser": """
            opt.zero_grad(); loss.backward(); opt.step()
            critic(batch[0]).pow(2).mean().backward()
            if run.step % 3 == 0: other.step(); other.zero_grad()""",
}


@pytest.mark.parametrize("name", GRADIENTS)
@pytest.mark.parametrize("halts", [(2,), (4, 3)])
def test_gradients_that_the_next_step_adds_to_are_kept(tmp_path: Path, name: str, halts: tuple[int, ...]) -> None:
    source = WITH_TWO.replace("opt.zero_grad(); loss.backward(); opt.step()", GRADIENTS[name])
    source = source.replace("model, opt = run.prepare(model, opt)", "run.prepare(model, opt, critic, other)")
    assert result_of(tmp_path / "halted", source, halts) == result_of(tmp_path / "alone", source)


@pytest.mark.parametrize("prepared", ["run.prepare(model, opt)", "pass"])
@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_of_models_that_are_not_prepared_are_kept(tmp_path: Path, name: str, prepared: str) -> None:
    source = WITH_TWO.replace("opt.zero_grad(); loss.backward(); opt.step()", GRADIENTS[name])
    source = source.replace("model, opt = run.prepare(model, opt)", prepared)
    assert result_of(tmp_path / "halted", source, (4, 3)) == result_of(tmp_path / "alone", source)


def test_gradient_of_a_tensor_without_an_optimizer_is_kept(tmp_path: Path) -> None:
    by_hand = """
            (loss + own.pow(2).sum() * batch[0].sum()).backward()
            if run.step % 3 == 0: own.data -= 0.1 * own.grad; own.grad = None; opt.step(); opt.zero_grad()"""
    source = WITH_TWO.replace("opt.zero_grad(); loss.backward(); opt.step()", by_hand)
    source = source.replace("critic = nn", "own = torch.ones(3, requires_grad=True); critic = nn")
    source = source.replace("flat(critic), ", "own.tolist(), ").replace("model, opt = run.prepare(model, opt)", "pass")
    assert result_of(tmp_path / "halted", source, (4, 3)) == result_of(tmp_path / "alone", source)


def test_gradients_that_each_step_clears_are_not_stored(tmp_path: Path) -> None:
    source = WITH_TWO.replace("model, opt = run.prepare(model, opt)", "pass")
    assert start(tmp_path, source, stop_at=8) is None
    found = checkpoint_files.load(tmp_path, may_tidy=False)
    assert found is not None
    assert found[1]["unprepared_gradients"] == {}


class TensorPart(torch.Tensor):
    """Stands for the tensors of a sharded model, which hold a part of each parameter."""


def test_gradients_of_sharded_parameters_are_left_alone() -> None:
    whole, part = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(2).as_subclass(TensorPart))
    gradients = UnpreparedGradients({"whole": whole, "part": part}, [], lambda: 0)
    for one in (whole, part):
        one.square().sum().backward()

    assert gradients.snapshot().keys() == {"whole"}
    gradients.put_back({})
    assert whole.grad is None
    assert part.grad is not None


@pytest.mark.parametrize("ahead", [False, True], ids=["with the state", "before the state"])
def test_reverting_ahead_restores_the_same(ahead: bool) -> None:
    class Holder:
        def __init__(self) -> None:
            self.losses = [1.0]

    holder = Holder()
    graph = ObjectGraph({"holder": holder})
    holder.losses.append(2.0)
    vars(holder).update(cache=[5], rehearsed=True)
    cache = vars(holder)["cache"]
    undone: Undone | None = {} if ahead else None
    if ahead:
        graph.revert(undone)
        assert (holder.losses, list(vars(holder))) == ([1.0], ["losses"])
    graph.put({"holder": {0: Changes({"cache": Skipped(), "steps": 7})}}, reverts=True, undone=undone)

    assert holder.losses == [1.0], "not in the stored changes"
    assert vars(holder) == {"losses": holder.losses, "cache": cache, "steps": 7}, "what was not stored stays as it was"


def test_entry_that_replaces_a_librarys_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(copyreg.dispatch_table, complex, copyreg.dispatch_table[complex])
    label = "entries of copyreg.dispatch_table"
    before = dict(read_activity()).get(label)

    def reduce_complex(value: complex) -> tuple[type[complex], tuple[float, float]]:
        return complex, (value.real, value.imag)

    reduce_complex.__module__ = "__main__"
    copyreg.pickle(complex, reduce_complex)

    assert dict(read_activity()).get(label) != before
