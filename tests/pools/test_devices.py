"""Devices of a machine. NVML is a fake library, built here, that answers as a driver does."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dlaas_server.pools.config import NodeEntry, PoolConfig, PoolSection
from dlaas_server.pools.devices import CpuSlots, Holder, NvmlProbe, StaticNodes, choose_probe, cores, seat_environment

HERE = Path(__file__).parent
UUID = "GPU-fake0000-0000-0000-0000-00000000000"


@pytest.fixture(scope="module")
def fake_nvml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build a folder with a `libnvidia-ml.so.1` that has no hardware behind it."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler to build the fake NVML")
    folder = tmp_path_factory.mktemp("nvml")
    source = HERE / "fake_nvml.c"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", folder / "libnvidia-ml.so.1", source], check=True)
    return folder


def probed(fake_nvml: Path | None, code: str, **settings: str) -> str:
    """Return the output of `code` in a Python of its own, whose loader finds the fake library."""
    environment = {k: v for k, v in os.environ.items() if k != "CUDA_VISIBLE_DEVICES"} | settings
    environment["LD_LIBRARY_PATH"] = str(fake_nvml) if fake_nvml else "/nowhere"
    environment["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


DEVICES = """
from dlaas_server.pools.devices import NvmlProbe
probe = NvmlProbe()
for d in probe.devices({lent}):
    print(d.index, d.id, d.kind, d.memory_bytes >> 30, d.out_of_service, sep="|")
print("problem:", probe.problem)
probe.close()
"""


def devices(fake_nvml: Path | None, lent: str = "{}", **settings: str) -> list[str]:
    return probed(fake_nvml, DEVICES.replace("{lent}", lent), **settings).splitlines()


def test_each_gpu_is_a_device_named_by_its_uuid(fake_nvml: Path) -> None:
    assert devices(fake_nvml) == [
        f"0|{UUID}0|FAKE GPU (no hardware)|16|None",
        f"1|{UUID}1|FAKE GPU (no hardware)|16|None",
        "problem: None",
    ]


def test_lost_gpu_is_out_of_service_alone(fake_nvml: Path) -> None:
    first, second, _ = devices(fake_nvml, FAKE_NVML_LOST="1")

    assert first.endswith("|16|None")
    assert second.startswith(f"1|{UUID}1|")
    assert "lost" in second.lower()


def test_a_gpu_whose_handle_is_refused_keeps_its_place(fake_nvml: Path) -> None:
    first, second, _ = devices(fake_nvml, FAKE_NVML_NO_HANDLE="0")

    assert first.startswith("0|gpu-0|unknown GPU|0|does not answer")
    assert second.endswith("|16|None")


def test_mig_slices_are_devices(fake_nvml: Path) -> None:
    found = devices(fake_nvml, FAKE_NVML_MIG="0")

    assert [line.split("|")[1] for line in found[:3]] == ["MIG-fake-0-0", "MIG-fake-0-1", f"{UUID}1"]
    assert [line.split("|")[0] for line in found[:3]] == ["0", "1", "2"]


LINKS = """
from dlaas_server.pools.devices import NvmlProbe
probe = NvmlProbe(visible={visible!r})
print(*(device.link or "-" for device in probe.devices({{}})))
probe.close()
"""


@pytest.mark.parametrize(
    ("what", "groups"),
    [
        ({}, "- - - - - -"),
        ({"FAKE_NVML_LINKS": "6"}, "nvlink-0 " * 6),
        ({"FAKE_NVML_LINKS": "2"}, "nvlink-0 nvlink-0 nvlink-1 nvlink-1 nvlink-2 nvlink-2"),
        ({"FAKE_NVML_LINKS": "4", "FAKE_NVML_LOST": "1"}, "nvlink-0 - nvlink-0 nvlink-0 nvlink-1 nvlink-1"),
        ({"FAKE_NVML_LINKS": "4", "FAKE_NVML_NO_HANDLE": "4"}, "nvlink-0 nvlink-0 nvlink-0 nvlink-0 - -"),
        ({"FAKE_NVML_LINKS": "2", "FAKE_NVML_MIG": "2"}, "nvlink-0 nvlink-0 - - - nvlink-1 nvlink-1"),
        ({"FAKE_NVML_LINKS": "4", "CUDA_VISIBLE_DEVICES": "1,2,4"}, "nvlink-0 nvlink-0 -"),
    ],
    ids=["none", "all", "pairs", "one is lost", "one does not answer", "slices", "some are visible"],
)
def test_gpus_that_all_talk_over_nvlink_are_a_group(fake_nvml: Path, what: dict[str, str], groups: str) -> None:
    assert links(fake_nvml, **what) == groups.split()


def links(fake_nvml: Path, **what: str) -> list[str]:
    code = LINKS.format(visible=what.get("CUDA_VISIBLE_DEVICES"))
    return probed(fake_nvml, code, FAKE_NVML_COUNT="6", **what).split()


def test_memory_that_others_hold_keeps_a_gpu_from_being_lent(fake_nvml: Path) -> None:
    first = devices(fake_nvml, FAKE_NVML_FOREIGN="0")[0]

    assert "4.0 GiB of its memory is used by" in first
    assert "outside this pool" in first


def test_a_gpu_that_the_pool_lends_is_not_called_occupied(fake_nvml: Path) -> None:
    lent = f"{{'{UUID}0': 'a-1'}}"

    assert devices(fake_nvml, lent, FAKE_NVML_FOREIGN="0")[0].endswith("|None")


def test_gpu_with_unexplained_memory_use_is_not_lent(fake_nvml: Path) -> None:
    assert "held by no visible process" in devices(fake_nvml, FAKE_NVML_LEFT_OVER="0")[0]
    assert devices(fake_nvml, FAKE_NVML_LEFT_OVER="0", FAKE_NVML_COUNT="1")[0].endswith("|None"), "the only GPU"


def test_uncorrected_memory_errors_put_a_gpu_out_of_service(fake_nvml: Path) -> None:
    assert "3 uncorrected memory errors" in devices(fake_nvml, FAKE_NVML_ECC="0")[0]


def test_an_xid_of_the_device_puts_it_out_of_service(fake_nvml: Path) -> None:
    assert "Xid 79" in devices(fake_nvml, FAKE_NVML_XID="79")[0]


def test_an_xid_of_a_program_leaves_the_gpu_in_service(fake_nvml: Path) -> None:
    assert devices(fake_nvml, FAKE_NVML_XID="31")[0].endswith("|None")


@pytest.mark.parametrize(("code", "says"), [("9", "problem: None"), ("18", "problem: the NVIDIA driver does not")])
def test_failing_driver_gives_no_device_and_a_reason(fake_nvml: Path, code: str, says: str) -> None:
    (only,) = devices(fake_nvml, FAKE_NVML_INIT=code)

    assert only.startswith(says)


def test_without_a_library_there_is_no_gpu() -> None:
    if shutil.which("nvidia-smi"):
        pytest.skip("this machine has a driver, which is found beside LD_LIBRARY_PATH")
    assert devices(None) == ["problem: None"]


def test_without_pynvml_there_is_no_gpu() -> None:
    def absent() -> Any:
        raise ImportError("No module named 'pynvml'")

    assert NvmlProbe(load=absent).devices({}) == ()


def test_the_probe_is_loaded_only_when_it_is_asked() -> None:
    assert probed(None, "import sys, dlaas_server.pools.devices; print('pynvml' in sys.modules)") == "False\n"


def test_the_chooser_takes_gpus_where_there_are_any(fake_nvml: Path) -> None:
    code = """
from dlaas_server.pools.config import PoolConfig
from dlaas_server.pools.devices import choose_probe
probe = choose_probe(PoolConfig())
print(probe.unit, [len(n.devices) for n in probe.nodes({})])
"""
    assert probed(fake_nvml, code) == "GPU [2]\n"
    assert probed(fake_nvml, code, CUDA_VISIBLE_DEVICES="1") == "GPU [1]\n"
    assert probed(fake_nvml, code, CUDA_VISIBLE_DEVICES=f"{UUID}0") == "GPU [1]\n"
    assert probed(fake_nvml, code, CUDA_VISIBLE_DEVICES="") == f"CPU slot [{cores()}]\n"


def test_without_gpus_each_core_is_a_named_slot() -> None:
    config = PoolConfig()
    nodes = choose_probe(config, environment={"CUDA_VISIBLE_DEVICES": ""}).nodes({})

    assert [d.id for d in nodes[0].devices] == [f"cpu-{i}" for i in range(cores())]
    assert all(d.kind.startswith("CPU") for d in nodes[0].devices)
    assert nodes[0].memory_bytes > 0


def test_the_number_of_slots_can_be_configured() -> None:
    config = PoolConfig(pool=PoolSection(cpu_slots=8))
    (node,) = choose_probe(config, environment={"CUDA_VISIBLE_DEVICES": ""}).nodes({})

    assert len(node.devices) == 8


def test_configured_nodes_replace_detected_ones() -> None:
    config = PoolConfig(nodes=(NodeEntry(name="left", slots=2), NodeEntry(name="right", slots=1, cordoned="repair")))
    probe = choose_probe(config)

    assert isinstance(probe, StaticNodes)
    assert [(n.name, [d.id for d in n.devices], n.cordoned) for n in probe.nodes({})] == [
        ("left", ["left-0", "left-1"], None),
        ("right", ["right-0"], "repair"),
    ]


def test_cpu_seat_hides_gpus_and_limits_threads() -> None:
    assert seat_environment(["cpu-0"], cores_of_node=8, slots_of_node=4) == {
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "2",
        "MKL_NUM_THREADS": "2",
        "OPENBLAS_NUM_THREADS": "2",
    }


def test_a_gpu_seat_sees_its_gpus_by_uuid() -> None:
    seat = seat_environment(["GPU-b", "GPU-a"], cores_of_node=64, slots_of_node=8)

    assert seat["CUDA_VISIBLE_DEVICES"] == "GPU-b,GPU-a"
    assert seat["OMP_NUM_THREADS"] == "16"


def test_more_slots_than_cores_still_give_one_thread() -> None:
    assert seat_environment(["cpu-7"], cores_of_node=2, slots_of_node=8)["OMP_NUM_THREADS"] == "1"


def test_threads_follow_the_cpus_that_were_asked_for() -> None:
    assert seat_environment(["cpu-0"], cores_of_node=8, slots_of_node=8, cpus=3.0)["OMP_NUM_THREADS"] == "3"


def test_slots_never_outnumber_the_quota(tmp_path: Path) -> None:
    from dlaas_server.pools.devices import _cpu_quota

    (tmp_path / "cpu.max").write_text("150000 100000")
    assert _cpu_quota(tmp_path) == 1.5
    (tmp_path / "cpu.max").write_text("max 100000")
    assert _cpu_quota(tmp_path) is None


def gpus_held(*holders: Sequence[tuple[Holder, int]], lent: Mapping[str, str] | None = None) -> list[str | None]:
    """Return why GPUs of 16 GiB are out of service; for each, its processes and what they hold, in GiB."""
    pids = {number: holder for number, (holder, _) in enumerate(one for gpu in holders for one in gpu)}
    numbers = iter(pids)
    processes = [[SimpleNamespace(pid=next(numbers), usedGpuMemory=held << 30) for _, held in gpu] for gpu in holders]

    def memory(gpu: int) -> Any:
        used = sum(held for _, held in holders[gpu]) << 30
        return SimpleNamespace(total=16 << 30, used=used, free=(16 << 30) - used)

    def refuse(*_: object) -> None:
        raise RuntimeError

    class Nvml(SimpleNamespace):
        def __getattr__(self, name: str) -> Any:
            return refuse

    nvml = Nvml(
        NVMLError=RuntimeError,
        nvmlDeviceGetCount=lambda: len(holders),
        nvmlDeviceGetHandleByIndex=lambda number: number,
        nvmlDeviceGetUUID=lambda gpu: f"GPU-{gpu}",
        nvmlDeviceGetName=lambda gpu: "GPU",
        nvmlDeviceGetMemoryInfo=memory,
        nvmlDeviceGetComputeRunningProcesses=processes.__getitem__,
    )
    probe: Any = NvmlProbe(holder_of=pids.__getitem__)
    probe._nvml = nvml
    return [device.out_of_service for device in probe.devices(lent or {})]


JOB, NOTEBOOK, UNSEEN, OTHER = Holder.JOB, Holder.NOTEBOOK, Holder.UNSEEN, Holder.OTHER


@pytest.mark.parametrize(
    ("gpus", "expected"),
    [
        ([[(JOB, 8)]], [None]),
        ([[(NOTEBOOK, 8)]], [None]),
        ([[(UNSEEN, 8)]], [None]),
        ([[(OTHER, 8)]], ["outside this pool"]),
        ([[(NOTEBOOK, 4), (OTHER, 4)]], ["outside this pool"]),
        ([[(NOTEBOOK, 13)]], ["restart that kernel"]),
        ([[(NOTEBOOK, 8)], []], ["8.0 GiB of its memory is used by the notebook kernel", None]),
        ([[(NOTEBOOK, 8)], [(NOTEBOOK, 2)]], [None, None]),
        ([[(NOTEBOOK, 8)], [(OTHER, 2)]], [None, "outside this pool"]),
        ([[(NOTEBOOK, 13)], [(NOTEBOOK, 2)]], ["restart that kernel", None]),
        ([[(UNSEEN, 8)], []], ["no visible process", None]),
    ],
)
def test_notebooks_gpu_is_offered_where_no_other_is(
    gpus: list[list[tuple[Holder, int]]], expected: list[str | None]
) -> None:
    found = gpus_held(*gpus)

    assert [one is None for one in found] == [one is None for one in expected], found
    assert all((text or "") in (said or "") for text, said in zip(expected, found, strict=True)), found


def test_notebooks_gpu_is_kept_while_a_job_has_the_other() -> None:
    first, second = gpus_held([(NOTEBOOK, 8)], [(JOB, 9)], lent={"GPU-1": "digits-1"})

    assert (first is None, second) == (False, None)


def test_cpu_slots_are_the_same_at_each_look() -> None:
    probe = CpuSlots(3)

    assert probe.nodes({}) == probe.nodes({"cpu-0": "a-1"})
