"""The peer Slurm: one node, its own configuration, started from here without systemd and ended at the end."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.bench.measuring import TRIVIAL, Bench, Unmeasurable, in_turn, milliseconds, stamps
from tests.bench.table import Line, figure, ratio
from tests.whole.site import until

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun")
JOBS = 60


@dataclass(frozen=True, slots=True)
class Slurm:
    """A running cluster of one node."""

    folder: Path
    environment: dict[str, str]

    def ask(self, *command: str) -> str:
        ended = subprocess.run(command, env=self.environment, capture_output=True, text=True, cwd=self.folder)
        if ended.returncode:
            raise Unmeasurable(f"{' '.join(command[:2])}: {ended.stderr[-200:]}")
        return ended.stdout.strip()

    def queue(self) -> list[str]:
        return self.ask("squeue", "-h", "-o", "%i").split()


def measure(bench: Bench) -> list[Line]:
    """First line by sbatch and srun in turn with ours; then what is taken in and goes through."""
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if missing:
        raise Unmeasurable(f"{', '.join(missing)} missing (apt-get install slurm-wlm slurmctld slurmd munge)")
    if os.geteuid() != 0:
        raise Unmeasurable("Slurm's daemons need root")
    script = bench.script(TRIVIAL)
    bench.site.submit(TRIVIAL).wait()

    def ours() -> float:
        begin = time.monotonic_ns()
        job = bench.site.submit(TRIVIAL).wait()
        return milliseconds(begin, stamps(str(job.client.log(job.id)["text"]))[0])

    with running(bench.site.folder / "slurm") as slurm:

        def by_srun() -> float:
            begin = time.monotonic_ns()
            return milliseconds(begin, stamps(slurm.ask("srun", "-Q", "-n1", sys.executable, str(script)))[0])

        def by_sbatch() -> float:
            out = slurm.folder / f"out-{time.monotonic_ns()}"
            begin = time.monotonic_ns()
            slurm.ask("sbatch", "--parsable", "-o", str(out), "--wrap", f"{sys.executable} {script}")
            until(lambda: out.exists() and "BENCH" in out.read_text(), "the batch job has printed")
            return milliseconds(begin, stamps(out.read_text())[0])

        found = in_turn(max(2, bench.runs // 2), ours, by_srun, by_sbatch)
        begin_s = time.monotonic()
        for _ in range(JOBS):
            slurm.ask("sbatch", "--parsable", "-o", "/dev/null", "--wrap", "exit 0")
        accepted_s = time.monotonic() - begin_s
        until(lambda: not slurm.queue(), "Slurm's jobs are through", 240.0)
        through_s = time.monotonic() - begin_s
    us = figure(found[0], "ms")
    lines = [
        Line(
            what="submit → first user line",
            bar="(published: srun 60 ms, sbatch 953–2960)",
            measured=us,
            beside=f"Slurm {how}",
            beside_figure=figure(values, "ms"),
            times=ratio(us, figure(values, "ms")),
        )
        for how, values in (("srun", found[1]), ("sbatch", found[2]))
    ]
    peer = f"Slurm {JOBS / through_s:.1f} jobs/s end to end, {JOBS / accepted_s:.0f} accepts/s"
    return [*lines, Line(what="trivial jobs, Slurm", bar="(published: 0.8–3.7 jobs/s, 126 accepts/s)", beside=peer)]


@contextmanager
def running(folder: Path) -> Iterator[Slurm]:
    """munged, slurmctld and slurmd, until the node is idle; ended again."""
    for name in ("state", "spool"):
        (folder / name).mkdir(parents=True)
    host = socket.gethostname().split(".")[0]
    cores = len(os.sched_getaffinity(0))
    (folder / "slurm.conf").write_text(
        f"ClusterName=bench\nSlurmctldHost={host}(127.0.0.1)\nSlurmUser=root\nSlurmdUser=root\nAuthType=auth/munge\n"
        f"StateSaveLocation={folder}/state\nSlurmdSpoolDir={folder}/spool\n"
        f"SlurmctldPidFile={folder}/ctld.pid\nSlurmdPidFile={folder}/d.pid\n"
        f"SlurmctldLogFile={folder}/ctld.log\nSlurmdLogFile={folder}/d.log\n"
        "ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nSelectType=select/cons_tres\n"
        "SelectTypeParameters=CR_Core\nReturnToService=2\nMaxJobCount=20000\n"
        "SchedulerParameters=sched_min_interval=0,batch_sched_delay=0,sched_interval=1\n"
        f"NodeName={host} NodeAddr=127.0.0.1 CPUs={cores} Sockets=1 CoresPerSocket={cores} ThreadsPerCore=1 "
        f"RealMemory=1000 State=UNKNOWN\nPartitionName=all Nodes={host} Default=YES MaxTime=INFINITE State=UP\n"
    )
    (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
    slurm = Slurm(folder, dict(os.environ, SLURM_CONF=str(folder / "slurm.conf")))
    processes: list[subprocess.Popen[bytes]] = []

    def start(*command: str) -> None:
        with (folder / f"{Path(command[0]).name}.out").open("ab") as out:
            processes.append(subprocess.Popen(command, env=slurm.environment, stdout=out, stderr=out))

    def answers(*command: str, said: str = "") -> bool:
        ended = subprocess.run(command, env=slurm.environment, capture_output=True, text=True)
        return ended.returncode == 0 and said in ended.stdout

    try:
        if not answers("sh", "-c", "munge -n < /dev/null | unmunge"):
            socket_folder = Path("/run/munge")
            socket_folder.mkdir(mode=0o755, exist_ok=True)
            shutil.chown(socket_folder, "munge", "munge")
            start("runuser", "-u", "munge", "--", "munged", "-F")
            until(lambda: answers("sh", "-c", "munge -n < /dev/null | unmunge"), "munge answers", 30.0)
        start("slurmctld", "-D", "-f", str(folder / "slurm.conf"))
        start("slurmd", "-D", "-f", str(folder / "slurm.conf"))
        until(lambda: answers("sinfo", "-h", "-o", "%T", said="idle"), "Slurm's node is idle", 60.0)
        yield slurm
    except AssertionError as error:
        raise Unmeasurable(f"Slurm: {error}") from None
    finally:
        for process in reversed(processes):
            process.send_signal(signal.SIGTERM)
        for process in reversed(processes):
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
