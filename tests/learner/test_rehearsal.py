"""Processes that wait for a job have used what its start uses, and nothing of that shows in the job."""

from __future__ import annotations

import json
import subprocess
import sys

STATE = """
def state():
    return {
        "environment": sorted(os.environ.items()), "directory": os.getcwd(), "argv": sys.argv, "path": sys.path,
        "signals": {str(one): repr(signal.getsignal(one)) for one in signal.valid_signals()},
        "descriptors": sorted(os.listdir("/proc/self/fd")), "tasks": len(os.listdir("/proc/self/task")),
        "gc": gc.isenabled(), "main": id(sys.modules["__main__"]),
        "hooks": [len(import_hooks._waiting), len(sys.meta_path)], "context": context.current() is not None,
        "torch": [torch.get_num_threads(), torch.get_default_dtype().is_complex, torch.is_grad_enabled()],
    }
"""
PROGRAM = f"""
import gc, json, os, signal, sys
import torch, torch._dynamo
from jupyter_dlaas.learner.control import context
from jupyter_dlaas.learner.environment import import_hooks
from jupyter_dlaas.learner.process import rehearsal
{STATE}
gc.disable()
torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"
done = []
for name in ("_take_order", "_enter_job", "_read_program", "_end", "_begin_loop"):
    def act(act=getattr(rehearsal, name), name=name):
        act()
        done.append(name)
    setattr(rehearsal, name, act)
before = state()
waits = []
rehearsal.rehearse(lambda within_s: waits.append(within_s), 0.2)
once = list(done)
rehearsal.rehearse(lambda _: len(done) == 7, 0.0)
print(json.dumps([before, state(), once, done[5:], waits]), file=sys.__stdout__)
"""


def test_rehearsal_has_no_effect_and_stops_for_an_order() -> None:
    ran = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    before, after, once, stopped, waits = json.loads(ran.stdout)

    assert ran.stderr == "", "no part has failed"
    assert len(once) == 5
    assert waits == [0.0] * 4 + [0.2]
    assert after == before
    assert stopped == once[:2]
