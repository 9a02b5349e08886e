"""The same small training as an elastic program of torchrun's and of torchft's, with one agent for each learner.

torchrun is tuned: without TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 its scale-up fails, `last_call_timeout` is 30 s
otherwise, and its agents look after their learners each 5 s.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.bench.measuring import CACHE, Unmeasurable

__all__ = ["DATA_AND_MODEL", "TELL", "Peer", "torchft", "torchrun"]

TELL: Final = """import os, time
_out = os.open(os.path.join(os.environ["BENCH_OUT"], f"{os.getpid()}.steps"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)


def tell(step, learners):
    os.write(_out, f"{time.monotonic()} {step} {learners}\\n".encode())


"""
DATA_AND_MODEL: Final = """import torch
from torch import nn

torch.manual_seed(0)
x, y = torch.randn(1797, 1, 8, 8), torch.randint(0, 10, (1797,))
model = nn.Sequential(
    nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(),
    nn.Flatten(), nn.Linear(64 * 16, 10),
)
opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
"""
_TORCHRUN: Final = f"""{TELL}{DATA_AND_MODEL}
import torch.distributed as dist

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
model = nn.parallel.DistributedDataParallel(model)
kept, step = os.path.join(os.environ["BENCH_OUT"], "checkpoint"), 0
if os.path.exists(kept):
    found = torch.load(kept)
    model.load_state_dict(found["model"])
    opt.load_state_dict(found["opt"])
    step = found["step"]
while True:
    epoch, index = divmod(step, len(y) // 64)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(epoch))
    mine = torch.tensor_split(order[index * 64 : index * 64 + 64], size)[rank]
    opt.zero_grad()
    nn.functional.cross_entropy(model(x[mine]), y[mine]).backward()
    opt.step()
    step += 1
    tell(step, size)
    if rank == 0 and step % 50 == 0:
        torch.save({{"model": model.state_dict(), "opt": opt.state_dict(), "step": step}}, kept + ".part")
        os.replace(kept + ".part", kept)
"""
_TORCHFT: Final = f"""{TELL}{DATA_AND_MODEL}
from datetime import timedelta

import torch.distributed as dist
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def load(state):
    model.load_state_dict(state["model"])
    plain.load_state_dict(state["opt"])


plain = opt
manager = Manager(
    pg=ProcessGroupGloo(timeout=timedelta(seconds=5)), min_replica_size=1, load_state_dict=load,
    state_dict=lambda: {{"model": model.state_dict(), "opt": plain.state_dict()}},
    replica_id=os.environ["BENCH_REPLICA"], store_addr="127.0.0.1", store_port=store.port, rank=0, world_size=1,
    timeout=timedelta(seconds=30), hostname="127.0.0.1",
)
ddp, opt = DistributedDataParallel(manager, model), Optimizer(manager, plain)
size = 1
while True:
    mine = torch.randint(0, len(y), (64 // max(1, size),))
    opt.zero_grad()
    nn.functional.cross_entropy(ddp(x[mine]), y[mine]).backward()
    opt.step()
    size = manager.num_participants()
    tell(manager.current_step(), size)
"""
_LIGHTHOUSE: Final = """import sys, time
from torchft.coordination import LighthouseServer

one = LighthouseServer(
    bind=f"127.0.0.1:{sys.argv[1]}", min_replicas=1, join_timeout_ms=100, quorum_tick_ms=20, heartbeat_timeout_ms=500
)
print(one.address(), flush=True)
time.sleep(3600)
"""


@dataclass
class Peer:
    """One training of a peer's: its agents, and the folder in which its learners tell their steps."""

    name: str
    out: Path
    command: list[str]
    environment: dict[str, str]
    agents: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def add(self) -> int:
        """Start one more learner with its agent; its place among the agents."""
        environment = self.environment | {"BENCH_REPLICA": f"r{len(self.agents)}"}
        with (self.out / f"agent-{len(self.agents)}.log").open("ab") as log:
            self.agents.append(
                subprocess.Popen(self.command, env=environment, stdout=log, stderr=log, start_new_session=True)
            )
        return len(self.agents) - 1

    def remove(self, agent: int) -> None:
        """Ask an agent to leave."""
        self.agents[agent].send_signal(signal.SIGTERM)

    def close(self) -> None:
        pids = {int(path.stem) for path in self.out.glob("*.steps")}
        for agent in self.agents:
            agent.kill()
            agent.wait()
        for pid in pids:
            try:
                if str(self.out).encode() in Path(f"/proc/{pid}/environ").read_bytes():
                    os.kill(pid, signal.SIGKILL)
            except OSError:
                continue


@contextmanager
def torchrun(folder: Path) -> Iterator[Peer]:
    """torchrun elastic with 1 to 2 nodes of one learner each; none is started yet."""
    folder.mkdir()
    script = folder / "train.py"
    script.write_text(_TORCHRUN)
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nnodes=1:2", "--nproc-per-node=1", "--max-restarts=50",
        "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{random.randint(20_000, 40_000)}", "--rdzv-id=bench",
        "--rdzv-conf=last_call_timeout=1", "--monitor-interval=0.05", str(script),
    ]  # fmt: skip
    more = {"BENCH_OUT": str(folder), "OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    peer = Peer("torchrun, tuned", folder, command, os.environ | more)
    try:
        yield peer
    finally:
        peer.close()


@contextmanager
def torchft(folder: Path) -> Iterator[Peer]:
    """torchft with a lighthouse; no replica is started yet. Raises Unmeasurable where it cannot be installed."""
    python = _torchft_python()
    folder.mkdir()
    (folder / "train.py").write_text(_TORCHFT)
    port = str(random.randint(20_000, 40_000))
    environment = os.environ | {"BENCH_OUT": str(folder), "OMP_NUM_THREADS": "1", "HOSTNAME": "127.0.0.1"}
    environment["TORCHFT_LIGHTHOUSE"] = f"http://127.0.0.1:{port}"
    with (folder / "lighthouse.log").open("ab") as log:
        lighthouse = subprocess.Popen(
            [str(python), "-c", _LIGHTHOUSE, port], env=environment, stdout=subprocess.PIPE, stderr=log
        )
    peer = Peer("torchft, tuned", folder, [str(python), str(folder / "train.py")], environment)
    try:
        assert lighthouse.stdout is not None
        if not lighthouse.stdout.readline():
            raise Unmeasurable(f"torchft's lighthouse does not start: {(folder / 'lighthouse.log').read_text()[-200:]}")
        yield peer
    finally:
        peer.close()
        lighthouse.kill()
        lighthouse.wait()


def _torchft_python() -> Path:
    """Create, on first use, an environment with this one's packages and torchft."""
    home = CACHE / "torchft"
    found = home / "bin" / "python"
    if not (home / "complete").exists():
        print(f"installing torchft into {home} (once) …", file=sys.stderr, flush=True)
        packages = next(path for path in sys.path if path.endswith("site-packages"))
        needed = ("opentelemetry-exporter-otlp-proto-http", "opentelemetry-sdk", "opentelemetry-api")
        link = f"import sys; sys.path.append({packages!r})"
        place = (
            f"import sysconfig, pathlib; pathlib.Path(sysconfig.get_path('purelib'), 'more.pth').write_text({link!r})"
        )
        for command in (
            [sys.executable, "-m", "venv", str(home)],
            [str(found), "-m", "pip", "install", "-q", *needed],
            [str(found), "-m", "pip", "install", "-q", "--no-deps", "torchft-nightly"],
            [str(found), "-c", place],
            [str(found), "-c", "import torchft"],
        ):
            made = subprocess.run(command, capture_output=True, text=True, timeout=900)
            if made.returncode:
                raise Unmeasurable(f"torchft cannot be installed: {made.stderr[-200:]}")
        (home / "complete").touch()
    return found
