"""Objects of many kinds that a loop changes: after two halts each is what it is without, or a report names it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest
import torch

from tests.learner.in_process import run_with_halts, start
from tests.learner.test_namespace import PARTS, Part, program
from tests.selection import exhaustive

pytestmark = pytest.mark.timeout(400)

KINDS: Final = {
    "buffer that is not persistent": Part(
        "model[0].seen.tolist()",
        "model[0].seen += 1",
        above="model[0].register_buffer('seen', torch.zeros(2), persistent=False)",
    ),
    "average and its schedule": Part(
        "(rates, flat(swa.module))",
        epoch="swa.update_parameters(model); slow.step(); rates.append(opt.param_groups[0]['lr'])",
        above="swa, slow, rates = swa_utils.AveragedModel(model), swa_utils.SWALR(opt, 0.01, 2), []",
    ),
    "dictionary as a cache": Part(
        "(list(cache), evicted)",
        "cache[run.step * 5 % 7] = cache.pop(run.step * 5 % 7, 0); evicted.append(next(iter(cache)))",
        above="cache, evicted = dict.fromkeys(range(7)), []",
    ),
    "ordered dictionary as a cache": Part(
        "(list(ordered.items()), oldest)",
        "ordered.move_to_end(run.step * 5 % 7); oldest.append(next(iter(ordered)))",
        above="ordered, oldest = collections.OrderedDict.fromkeys(range(7)), []",
    ),
    "order of a set": Part(
        "(picked, list(pool))",
        "picked.append(pool.pop()); pool.discard(run.step * 7)",
        above="pool, picked = set(range(300)), []\nfor i in range(290, 20, -1): pool.discard(i)",
    ),
    "methods of an object with its own pickling": Part(
        "(counted.n, counted_pair[0] is counted, note.__self__ is counted, note_twice.func.__self__ is counted)",
        "note(); note_twice(); counted_pair[0].add()",
        above="""
            import functools
            class Counted:
                def __init__(self, n=0): self.n = n
                def add(self): self.n += 1
                def __reduce__(self): return Counted, (self.n,)
            counted = Counted()
            note, note_twice, counted_pair = counted.add, functools.partial(counted.add), (counted, 1)
        """,
    ),
    "tuple and method of an object of C": Part(
        "(numbers_c.tolist(), held[0] is numbers_c, numbers_in['a'] is numbers_c)",
        "add_c(loss.item())",
        above="import array\nnumbers_c = array.array('d'); held = (numbers_c, 1); numbers_in = {'a': numbers_c}",
        cell="add_c = numbers_c.append",
    ),
    "estimator of scikit-learn": Part(
        "(clf.coef_.tolist(), clf_twin is clf, learn.__self__ is clf)",
        "learn(batch[0].numpy(), (batch[0].sum(1) > 0).int().numpy(), classes=[0, 1])",
        above="""
            from sklearn.linear_model import SGDClassifier
            clf = SGDClassifier(random_state=0)
            clf_twin, learn = clf, clf.partial_fit
        """,
    ),
    "table of pandas": Part(
        "(table.values.tolist(), tables['log'] is table)",
        "table.loc[len(table)] = [run.step, loss.item()]",
        above="import pandas as pd\ntable = pd.DataFrame(columns=['step', 'loss']); tables = {'log': table}",
    ),
    "attributes of a thread": Part(
        "(per_thread.n, per_thread.losses, own_thread.scale, own_thread.n)",
        "per_thread.n += 1; per_thread.losses.append(loss.item()); own_thread.n += 2",
        above="""
            import threading
            class Scale(threading.local):
                scale, n = 3, 0
            per_thread, own_thread = threading.local(), Scale()
            per_thread.n, per_thread.losses = 0, []
        """,
    ),
    "context variables": Part(
        "(counted_var.get(), list_var.get(), new_var.get(0))",
        "counted_var.set(counted_var.get() + 1); list_var.get().append(run.step); new_var.set(run.step)",
        above="""
            from contextvars import ContextVar
            counted_var, list_var, new_var = ContextVar('counted', default=0), ContextVar('list'), ContextVar('new')
            list_token = list_var.set([])
        """,
    ),
    "database in memory": Part(
        "[list(base.execute('select * from ' + name)) for name in ('steps', 'later')]",
        "base.execute('insert into steps values (?, ?)', (run.step, loss.item())); cursor.execute(LATER, (run.step,))",
        above="""
            import sqlite3
            base = sqlite3.connect(':memory:'); cursor = base.cursor()
            made = base.execute('create table steps (step, loss)')
            LATER = 'insert into later values (?)'
        """,
        cell="cursor.execute('create table if not exists later (step)')",
    ),
    "settings of the process": Part(
        "(str(torch.get_default_dtype()), np.geterr()['under'], os.environ.get('STAGE'), 'OLD_STAGE' in os.environ)",
        "if run.step == 2: np.seterr(under='raise'); os.environ['STAGE'] = 'two'; os.environ.pop('OLD_STAGE', None)",
        above="import os\nos.environ['OLD_STAGE'] = 'one'; os.environ.pop('STAGE', None); np.seterr(under='ignore')",
    ),
    "precision of float32 by backend": Part(
        "(torch.backends.cuda.matmul.fp32_precision, torch.backends.cudnn.conv.fp32_precision)",
        "if run.step == 2: torch.backends.cudnn.conv.fp32_precision = 'ieee'",
        above="torch.backends.cuda.matmul.fp32_precision = torch.backends.cudnn.conv.fp32_precision = 'tf32'",
    ),
    "attributes of parameters": Part(
        "[(p.ema.tolist(), p.old.tolist()) for p in model.parameters()]",
        "for p in model.parameters(): p.ema = 0.9 * p.ema + p.detach(); p.old = p.detach() + getattr(p, 'old', 0)",
        above="for p in model.parameters(): p.ema = p.detach().clone()",
    ),
    "hidden state over batches": Part(
        "flat(hidden)",
        "hidden = rnn(batch[0][None, :1], hidden)[1].detach()",
        cell="rnn = nn.RNN(4, 3, batch_first=True); hidden = torch.zeros(1, 1, 3)",
    ),
    "weak dictionaries and sets": Part(
        "(weak_counts.get(model[0]), len(weak_counts), sorted(weak_names), len(weak_set))",
        """
            weak_counts[model[0]] = weak_counts.get(model[0], 0) + 1; weak_counts[nn.Linear(1, 1)] = 1
            weak_names['first'], weak_names[f's{run.step}'] = model[0], opt
            weak_set.add(model[0]); weak_set.add(opt)
        """,
        above="""
            import weakref
            weak_counts, weak_names = weakref.WeakKeyDictionary(), weakref.WeakValueDictionary()
            weak_set = weakref.WeakSet()
        """,
    ),
    "weak references": Part(
        "(last_layer() is model[0], dead_layer(), last_method() == model.forward, weak_in_cell.get(model[0]))",
        """
            last_layer, last_method = weakref.ref(model[0]), weakref.WeakMethod(model.forward)
            layer_of_step = nn.Linear(1, 1); dead_layer = weakref.ref(layer_of_step); del layer_of_step
            weak_in_cell[model[0]] = run.step
        """,
        above="import weakref\nlast_layer = dead_layer = last_method = None",
        cell="weak_in_cell = weakref.WeakKeyDictionary()",
    ),
    "attributes of libraries": Part(
        "(F.my_scale, random.my_steps, nn.Linear.my_calls, torch.my_count, math.my_total, own_module.n)",
        """
            F.my_scale += 1; random.my_steps = [run.step]; nn.Linear.my_calls += 1; count_up()
            setattr(torch, 'my_count', getattr(torch, 'my_count', 0) + 1); own_module.n += 1
        """,
        above="""
            import math, types
            import torch.nn.functional as F
            F.my_scale, nn.Linear.my_calls, math.my_total, torch.my_count = 0, 0, 0, 0
            own_module = types.ModuleType("own_module")
            own_module.n = 0
            def count_up(): math.my_total += 1
        """,
    ),
    "hooks that the loop adds and removes": Part(
        "(seen_by_hooks, len(model[0]._forward_hooks))",
        """
            if run.step == 2: first_hook.remove()
            if run.step == 3: later_hook = model[0].register_forward_hook(note_later)
            if run.step == 9: later_hook.remove()
        """,
        above="""
            seen_by_hooks = []
            def note_first(*_): seen_by_hooks.append('first')
            def note_later(*_): seen_by_hooks.append('later')
            first_hook = model[0].register_forward_hook(note_first)
        """,
    ),
    "partial of a closure": Part(
        "add_up(0)",
        "add_up(2)",
        above="""
            import functools
            def summing():
                total = [0]
                def add(by, more):
                    total[0] += by + more
                    return total[0]
                return add
            add_up = functools.partial(summing(), more=1)
        """,
    ),
    "event and semaphore": Part(
        "(reached.is_set(), free_slots._value)",
        "free_slots.release(); run.step > 2 and reached.set()",
        above="import threading\nreached, free_slots = threading.Event(), threading.Semaphore(0)",
    ),
    "file that is updated": Part(
        "pathlib.Path(updated.name).read_text()",
        "updated.write(str(run.step % 10))",
        epoch="updated.flush()",
        above="""
            import pathlib
            updated = pathlib.Path(__file__).with_name("updated.txt")
            updated.exists() or updated.write_text("-" * 40)
            updated = open(updated, "r+")
        """,
    ),
    "queue": Part(
        "list(waiting.queue)",
        "waiting.put(loss.item()); waiting.qsize() > 3 and waiting.get()",
        above="import queue\nwaiting = queue.Queue()",
    ),
    "memory of several processes": Part(
        "(shared.value, list(shared_array))",
        "shared.value += 1; shared_array[run.step % 3] += 2",
        above="import multiprocessing as mp\nshared, shared_array = mp.Value('i', 0), mp.Array('i', 3)",
    ),
    "iterators of itertools": Part(
        "turns",
        "turns.append((next(turn), next(pairs), next(rest), next(first_of_two)))",
        above="""
            turn, pairs = itertools.cycle([3, 1, 2]), zip(range(50), enumerate(range(50, 100)))
            (first_of_two, _), rest = itertools.tee(iter(range(99))), itertools.islice(range(99), 3, 90)
            turns = []
        """,
    ),
    "dataclasses and enumerations": Part(
        "(phase.n, phase.items, phase.kind is Kind.LATE, fixed.n, record.n)",
        """
            phase.n += 1; phase.items.append(run.step); phase.kind = Kind.LATE if phase.n > 3 else Kind.EARLY
            fixed, record = dataclasses.replace(fixed, n=fixed.n + 2), record._replace(n=record.n + 1)
        """,
        above="""
            import dataclasses, enum
            Kind, Record = enum.Enum("Kind", "EARLY LATE"), collections.namedtuple("Record", "n")
            @dataclasses.dataclass(slots=True)
            class Phase:
                n: int = 0
                kind: Kind = Kind.EARLY
                items: list = dataclasses.field(default_factory=list)
            @dataclasses.dataclass(frozen=True)
            class Fixed:
                n: int = 0
            phase, fixed, record = Phase(), Fixed(), Record(0)
        """,
    ),
    "class of attrs": Part(
        "(of_attrs.n, of_attrs.items)",
        "of_attrs.n += 1; of_attrs.items.append(1)",
        above="""
            import attr
            @attr.s(slots=True)
            class OfAttrs:
                n = attr.ib(default=0)
                items = attr.ib(factory=list)
            of_attrs = OfAttrs()
        """,
    ),
    "generator of a sampler": Part(
        "order",
        "order.append(next(iter(sampler)))",
        above="""
            sampler, order = torch.utils.data.RandomSampler(range(50), generator=torch.Generator().manual_seed(1)), []
        """,
    ),
    "spawned generators": Part(
        "of_spawned",
        "of_spawned.append((child.random(), root.spawn(1)[0].random(), int(seeds.spawn(1)[0].generate_state(1)[0])))",
        above="""
            root, seeds, of_spawned = np.random.default_rng(5), np.random.SeedSequence(3), []
            child, = root.spawn(1)
        """,
    ),
    "dictionary keyed by parameters": Part(
        "[slow_of[p].tolist() for p in model.parameters()]",
        "for p in model.parameters(): slow_of[p] = 0.5 * slow_of[p] + p.detach()",
        above="slow_of = {p: p.detach().clone() for p in model.parameters()}",
    ),
    "optimiser around an optimiser": Part(
        "(sam.moves, flat(list(sam.state.values())), flat(sharp))",
        "sharp(batch[0]).pow(2).mean().backward(); sam.first(); sam.second()",
        above="""
            class SAM(torch.optim.Optimizer):
                def __init__(self, params, base, **options):
                    super().__init__(params, options)
                    self.base, self.moves = base(self.param_groups, **options), 0
                    self.param_groups = self.base.param_groups
                def first(self):
                    for p in self.param_groups[0]['params']: self.state[p]['e'] = 0.01 * p.grad; p.data.add_(p.grad)
                def second(self):
                    self.moves += 1
                    for p in self.param_groups[0]['params']: p.data.sub_(self.state[p]['e'])
                    self.base.step(); self.zero_grad()
            sharp = nn.Linear(4, 1)
            sam = SAM(sharp.parameters(), torch.optim.SGD, lr=0.01, momentum=0.9)
        """,
    ),
    "optimiser with a closure": Part(
        "(flat(line), flat(lbfgs.state_dict()))",
        "lbfgs.step(closure)",
        above="""
            line = nn.Linear(4, 1)
            lbfgs = torch.optim.LBFGS(line.parameters(), max_iter=2)
            def closure():
                lbfgs.zero_grad(); found = (line(data) - 1).pow(2).mean(); found.backward(); return found
        """,
    ),
    "state that the program restores itself": Part(
        "(flat(actor), flat(actor_opt.state_dict()), updates)",
        """
            actor_opt.zero_grad(); actor(batch[0]).pow(2).sum().backward(); actor_opt.step(); updates += 1
            run.state['a'] = copy.deepcopy((actor.state_dict(), actor_opt.state_dict()))
        """,
        above="actor = nn.Linear(4, 1); actor_opt = torch.optim.Adam(actor.parameters(), lr=0.01); updates = 0",
        cell="for one, kept in zip((actor, actor_opt), run.state.get('a', ())): one.load_state_dict(kept)",
    ),
    "default argument that remembers": Part(
        "remember()",
        "remember(run.step)",
        above="""
            def remember(x=None, log=[]):
                if x is not None: log.append(x)
                return list(log)
        """,
    ),
    "objects in a set": Part(
        "sorted(one.n for one in members)",
        "for one in members: one.n += 1",
        above="""
            class Member:
                def __init__(self, n): self.n = n
            members = {Member(1), Member(2)}
        """,
    ),
    "list behind its method": Part("record_of.__self__", "record_of(run.step)", above="record_of = [].append"),
    "views of one array": Part(
        "(whole.tolist(), part.tolist(), of_array.tolist(), of_list.tolist())",
        "first_two += 1; part += 1; of_list += 1",
        "if epoch == 0: part = torch.zeros(4)[:2]; of_array = np.zeros(4); of_list = of_array[:2]",
        above="whole = torch.zeros(4); first_two = whole[:2]; part = torch.zeros(1); of_list = np.zeros(1)",
    ),
    "schedules that restart and cycle": Part(
        "cycled",
        "side_opt.step(); restart.step(); cyclic.step(); cycled.append(dict(side_opt.param_groups[0], params=0))",
        above="""
            side_opt, cycled = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1, momentum=0.9), []
            restart = lr_scheduler.CosineAnnealingWarmRestarts(side_opt, 3)
            cyclic = lr_scheduler.CyclicLR(side_opt, 0.01, 0.1, step_size_up=3)
        """,
    ),
}


LIBRARIES: Final = {
    "metric of torchmetrics": Part(
        "(mean.compute().item(), means['m'] is mean)",
        "mean.update(loss.detach())",
        above="import torchmetrics\nmean = torchmetrics.MeanMetric(); means = {'m': mean}",
    ),
    "key of jax": Part(
        "(float(total_jax), np.asarray(jax.random.key_data(key)).tolist())",
        "key, used = jax.random.split(key); total_jax = total_jax + jax.random.uniform(used)",
        above="import jax\nkey, total_jax = jax.random.PRNGKey(0), 0.0",
    ),
}
"""Kinds of libraries that take seconds to be imported."""
Outcomes = tuple[dict[str, Any], dict[str, Any]]


def with_and_without_halts(folder: Path, kinds: dict[str, Part]) -> Outcomes:
    """Return the results of one program with all these kinds, undisturbed and halted twice."""
    with pytest.MonkeyPatch.context() as patch:
        for name, part in kinds.items():
            patch.setitem(PARTS, name, part)
        source = program(*kinds)
    try:
        alone = run_with_halts(folder / "alone", source)
        return alone["result"], run_with_halts(folder / "halted", source, (4, 3))["result"]
    finally:  # the programs run in this process
        torch.backends.cuda.matmul.fp32_precision = "none"


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    """Return the results of the kinds above, which one program has all."""
    return with_and_without_halts(tmp_path_factory.mktemp("kinds"), KINDS)


@pytest.mark.parametrize("name", KINDS)
def test_object_continues_after_two_halts(name: str, outcomes: Outcomes) -> None:
    alone, halted = outcomes
    assert halted[name] == alone[name]


@exhaustive
@pytest.mark.parametrize("name", LIBRARIES)
def test_object_of_a_library_continues_after_two_halts(tmp_path: Path, name: str) -> None:
    alone, halted = with_and_without_halts(tmp_path, {name: LIBRARIES[name]})
    assert halted == alone


SHARDED: Final = """
class Shard(torch.Tensor): pass
Shard.__module__ = "torch.distributed.tensor"  # stands for a parameter of a sharded model
shard = nn.Parameter(torch.ones(2).as_subclass(Shard))
sharded_opt = torch.optim.Adam([shard], lr=0.1)
"""
RESTORED: Final = """
moments = ("step", "exp_avg", "exp_avg_sq")
if "moments" in run.state: sharded_opt.state[shard] = dict(zip(moments, map(torch.tensor, run.state["moments"])))
@run.on_checkpoint
def gather(): run.state["moments"] = [sharded_opt.state[shard][name].tolist() for name in moments]
"""


def sharded(step: str, above: str = "") -> str:
    """Return a program that trains a sharded parameter."""
    part = Part("1", step, above=SHARDED, cell=above.strip())
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(PARTS, "sharded", part)
        return program("sharded", "counters")


STEPS: Final = {
    "each": "sharded_opt.zero_grad(); (shard * loss.detach()).sum().backward(); sharded_opt.step()",
    "every third": """
        (shard * loss.detach()).sum().backward()
        if run.step % 3 == 0: sharded_opt.step(); sharded_opt.zero_grad()
    """,
}


def reports(capfd: pytest.CaptureFixture[str]) -> list[str]:
    return [line for line in capfd.readouterr().err.splitlines() if line.startswith("[")]


def test_sharded_parameters_without_a_hook_are_reported(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    start(tmp_path, sharded(STEPS["each"]), stop_at=3)
    found = reports(capfd)
    assert len(found) == 1
    assert found[0].startswith("[The parameters of `shard` are sharded over the learners")
    assert "@run.on_checkpoint" in found[0]


def test_program_that_restores_sharded_state_resumes_without_reports(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    source = sharded(STEPS["each"], RESTORED)
    found = run_with_halts(tmp_path / "halted", source, (3, 2))["result"]
    assert found == run_with_halts(tmp_path / "alone", source)["result"]
    assert reports(capfd) == []


def test_accumulated_gradients_of_sharded_parameters_are_reported(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    start(tmp_path, sharded(STEPS["every third"], RESTORED), stop_at=4)
    found = reports(capfd)
    assert len(found) == 1
    assert found[0].startswith("[This loop accumulates gradients of sharded parameters")


def test_set_of_objects_that_cannot_be_stored_is_not_reported(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    part = Part("total_of_set", "total_of_set += 1", above="total_of_set = 0\nopen_ones = {open(__file__), iter([1])}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(PARTS, "set", part)
        start(tmp_path, program("set"), stop_at=3)
    assert reports(capfd) == []


LOST: Final = {
    "mmap": "import mmap\nlost = mmap.mmap(-1, 16)",
    "queue of processes": "import multiprocessing\nlost = multiprocessing.Queue()",
    "simple queue": "import queue\nlost = queue.SimpleQueue()",
    "checksum": "import hashlib\nlost = hashlib.sha256()",
    "temporary file": "import tempfile\nlost = tempfile.NamedTemporaryFile()",
    "temporary directory": "import tempfile\nlost = tempfile.TemporaryDirectory()",
}


@pytest.mark.parametrize("name", LOST)
def test_object_that_a_halt_loses_is_reported(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PARTS, name, Part("1", above=LOST[name]))

    start(tmp_path, program(name), stop_at=1)

    assert "[`lost` cannot be kept in checkpoints: after a halt" in capfd.readouterr().err


SECRET: Final = """
{above}
import os
import jupyter_dlaas as dlaas
run = dlaas.run()
for epoch in run.epochs(3):
    os.environ["STAGE"] = f"stage-{{epoch}}"
    os.environ["MY_API_KEY"] = "sk-4711-aaaa-" + str(epoch)
"""


@pytest.mark.parametrize("above", ["", "from os import environ", "import os; environ = os.environ"])
def test_secrets_set_in_the_loop_are_in_no_checkpoint(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, above: str
) -> None:
    for name in ("STAGE", "MY_API_KEY"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)

    start(tmp_path, SECRET.format(above=above), stop_at=2)

    stored = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path.name != "train.py")
    assert b"stage-1" in stored
    assert b"sk-4711" not in stored
    said = capfd.readouterr().err
    assert "`os.environ['MY_API_KEY']` (it holds a secret: set it above the loop, or pass it with --secret" in said
    assert "sk-4711" not in said
