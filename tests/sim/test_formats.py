"""Traces are read by their header, and refused by line and column."""

from __future__ import annotations

from pathlib import Path

import pytest

from dlaas_server.sim.trace.formats import FORMATS, read, read_gpu_seconds, read_nodes, read_trace
from dlaas_server.sim.trace.trace import (
    Muri,
    NodeSpec,
    Pod,
    Pollux,
    PolluxPlacement,
    PolluxScaling,
    PolluxValidation,
    Task,
    TraceError,
    TraceJob,
)

TRACES = Path(__file__).parent.parent / "traces"
PHILLY = "job_id,submit_s,gpus,duration_s\n"
PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n"
SAMPLES = {
    "philly": PHILLY + "0,5,2,146\n",
    "tiresias": "job_id,submit_s,gpus,duration_s,model,iterations\n0,0,1,164,vgg19,606\n",
    "queues": "job_id,submit_s,queue,gpus,duration_s\n0,0,A,1,1800\n",
    "spot": "job_id,submit_s,queue,gpus,duration_s,spot\n0,0,A,1,1800,1\n",
    "muri": (
        "job_id,submit_s,gpus,duration_s,model,batch_size,iterations,iter_time_ms,res0_ms,res1_ms,res2_ms,priority\n"
        "0,0.0,4,927475.0,bert,4,4881447,190,0.5,163,18,0\n"
    ),
    "shockwave": (
        "job_id,submit_s,gpus,duration_s,model,total_steps,adaptation_mode,priority_weight,slo\n"
        "0,0,1,1418,LM (batch size 10),134583,gns,1,-1.000000\n"
    ),
    "pollux": "workload,job_id,submit_s,application,gpus_tuned,batch_size_tuned\n1,ncf-2,135,ncf,1,32768\n",
    "gang": "job_id,submit_s,learners,gpus_per_learner,duration_s\n0,0,4,1,60\n",
    "ffdl": (
        "job_id,submit_s,learners,gpus_per_learner,cpus_per_learner,mem_gb_per_learner,duration_s\n0,172,2,3,4,16,541\n"
    ),
    "tetris": "job_id,task_id,submit_s,cpu,mem_gb,disk_mbps,net_mbps,duration_s\n0,1,153,2.0,34.27,42.41,118.2,161\n",
    "openb-pods": "name,cpu_milli,memory_mib,num_gpu,gpu_milli\np,6000,12288,1,460\n",
    "openb-pods-in-time": PODS + "p,6000,12288,1,460,,LS,Running,427061,12902960,427161\n",
    "nodes": "sn,cpu_milli,memory_mib,gpu,model\nn0,64000,262144,2,P100\n",
    "nodes-in-racks": "sn,cpu_milli,memory_mib,gpu,model,area,rack\nn0,64000,262144,2,P100,east,r1\n",
    "gpu-seconds": "gpu_seconds\n124\n121\n",
    "pollux-placements": "placement,local_bsz,step_time,sync_time\n12,32,0.5,0.25\n",
    "pollux-scalability": "num_nodes,num_replicas,local_bsz,step_time,sync_time\n3,6,32,0.5,0.25\n",
    "pollux-validation": "progress,iteration,metric,grad_sqr,grad_var\n19417.5,4925,0.5,80.25,90.5\n",
}


def write(folder: Path, text: str, name: str = "trace.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def refusal(folder: Path, text: str) -> TraceError:
    with pytest.raises(TraceError) as caught:
        read_trace(write(folder, text))
    return caught.value


def only_job(folder: Path, name: str) -> TraceJob:
    (job,) = read_trace(write(folder, SAMPLES[name])).jobs
    return job


def test_there_is_a_sample_of_every_format() -> None:
    assert sorted(SAMPLES) == sorted(f.name for f in FORMATS)


@pytest.mark.parametrize("name", SAMPLES)
def test_a_format_is_known_by_its_header(name: str, tmp_path: Path) -> None:
    assert read(write(tmp_path, SAMPLES[name]))[0].name == name


def test_the_order_of_columns_decides_nothing(tmp_path: Path) -> None:
    (job,) = read_trace(write(tmp_path, "gpus,duration_s,job_id,submit_s\n2,146,0,5\n")).jobs

    assert job == only_job(tmp_path, "philly")


def test_a_philly_job_is_read_with_whole_seconds(tmp_path: Path) -> None:
    assert only_job(tmp_path, "philly") == TraceJob(id="0", submit_s=5, duration_s=146, gpus_per_learner=2)


@pytest.mark.parametrize(
    ("text", "number"),
    [("7", "7"), ("7.0", "7"), ("0.5", "0.5"), ("1e3", "1000"), ("9007199254740993", "9007199254740992")],
)
def test_a_number_is_read_alike_whatever_stands_beside_it(text: str, number: str, tmp_path: Path) -> None:
    """A column of whole numbers is read at once, others cell by cell."""
    for others in ("", "1,3,1,5\n", "1,3.5,1,5\n"):
        jobs = read_trace(write(tmp_path, f"{PHILLY}0,{text},1,5\n{others}")).jobs

        assert [repr(job.submit_s) for job in jobs if job.id == "0"] == [number]


def test_trace_may_mark_spot_jobs(tmp_path: Path) -> None:
    assert only_job(tmp_path, "spot").spot
    assert not only_job(tmp_path, "queues").spot


def test_a_gang_asks_for_its_learners_times_their_gpus(tmp_path: Path) -> None:
    job = only_job(tmp_path, "gang")

    assert (job.learners, job.gpus_per_learner, job.gpus) == (4, 1, 4)
    assert only_job(tmp_path, "ffdl").gpus == 6


def test_a_muri_job_keeps_its_times_per_resource(tmp_path: Path) -> None:
    work = only_job(tmp_path, "muri").work

    assert isinstance(work, Muri)
    assert work.resources_ms == (0.5, 163, 18)


def test_a_tetris_task_is_known_by_job_and_task(tmp_path: Path) -> None:
    job = only_job(tmp_path, "tetris")

    assert (job.id, job.work) == ("0/1", Task(job="0", disk_mbps=42.41, net_mbps=118.2))


def test_a_pod_lives_from_its_start_to_its_deletion(tmp_path: Path) -> None:
    job = only_job(tmp_path, "openb-pods-in-time")

    assert (job.submit_s, job.duration_s) == (427061, 12902960 - 427161)
    assert isinstance(job.work, Pod)
    assert job.work.gpu_milli == 460


def test_jobs_are_ordered_by_time_then_file_order(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path, PHILLY + "b,9,1,5\nc,3,1,5\na,3,1,5\n"))

    assert [job.id for job in trace.jobs] == ["c", "a", "b"]


def test_workload_option_selects_one_of_several(tmp_path: Path) -> None:
    path = write(tmp_path, SAMPLES["pollux"] + "2,ncf-2,7,ncf,4,32768\n")

    (job,) = read_trace(path, workload=2).jobs

    assert job.work == Pollux(workload=2, application="ncf", batch_size_tuned=32768)


def test_several_workloads_without_a_choice_are_refused(tmp_path: Path) -> None:
    said = refusal(tmp_path, SAMPLES["pollux"] + "2,ncf-2,7,ncf,4,32768\n")

    assert str(said) == "trace.csv, line 1, column workload: holds workloads 1 to 2: choose one with --workload"


def test_nodes_are_read_with_their_kind(tmp_path: Path) -> None:
    nodes = read_nodes(write(tmp_path, SAMPLES["nodes"]))

    assert nodes == (NodeSpec(name="n0", gpus=2, cpus=64.0, mem_gb=256.0, kind="P100"),)


def test_nodes_may_stand_in_racks(tmp_path: Path) -> None:
    (found,) = read_nodes(write(tmp_path, SAMPLES["nodes-in-racks"]))

    assert (found.area, found.rack) == ("east", "r1")


def test_measured_times_are_read_by_their_columns(tmp_path: Path) -> None:
    placements, scaling, validation = (
        read(write(tmp_path, SAMPLES[f"pollux-{name}"]))[1] for name in ("placements", "scalability", "validation")
    )

    assert placements == [(2, PolluxPlacement(placement="12", local_batch=32, step_time_s=0.5, sync_time_s=0.25))]
    assert scaling == [(2, PolluxScaling(nodes=3, replicas=6, local_batch=32, step_time_s=0.5, sync_time_s=0.25))]
    assert validation == [
        (2, PolluxValidation(progress=19417.5, iteration=4925, metric=0.5, grad_sqr=80.25, grad_var=90.5))
    ]


def test_gpu_seconds_come_smallest_first(tmp_path: Path) -> None:
    assert read_gpu_seconds(write(tmp_path, SAMPLES["gpu-seconds"])) == (121, 124)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "line 1: the file is empty; a header is needed"),
        ("\n", "line 1: the file is empty; a header is needed"),
        (PHILLY, "line 1: nothing stands below the header"),
        (PHILLY + "\n", "line 1: nothing stands below the header"),
        ("a,b\n1,2\n", "line 1: unknown header 'a,b'."),
        ("job_id,submit_s,gpus\n0,0,1\n", "line 1, column duration_s: is missing (the rest looks like a philly trace)"),
        ("job_id,submit_s,gpus,duration_s,colour\n0,0,1,5,red\n", "line 1, column colour: is unknown"),
        ("job_id,submit_s,gpus,gpus\n0,0,1,1\n", "line 1, column gpus: stands twice in the header"),
        (
            "job_id,submit_s,queue,gpus,duration_s,spot\n0,0,A,1,1800,yes\n",
            "line 2, column spot: 'yes' is neither 0 nor 1",
        ),
        (PHILLY + "0,0,1,5\n1,x,1,5\n", "line 3, column submit_s: 'x' is not a number"),
        (PHILLY + "0,nan,1,5\n", "line 2, column submit_s: 'nan' is not finite"),
        (PHILLY + "0,-1,1,5\n", "line 2, column submit_s: -1 is negative"),
        (PHILLY + "0,0,1,-5\n", "line 2, column duration_s: -5 is not more than 0"),
        (PHILLY + "0,0,1,0\n", "line 2, column duration_s: 0 is not more than 0"),
        (PHILLY + "0,0,1.5,5\n", "line 2, column gpus: '1.5' is not a whole number"),
        (PHILLY + "0,0,0,5\n", "line 2, column gpus: 0 is less than 1"),
        (PHILLY + "0,0,1\n", "line 2: has 3 cells, the header 4"),
        (PHILLY + ",0,1,5\n", "line 2, column job_id: is empty"),
        (PHILLY + "0,0,1,5\n1,0,1,5\n0,2,1,5\n", "line 4, column job_id: job 0 stands in line 2 already"),
        (PHILLY + "0,0,1,5\n\n0,2,1,5\n", "line 4, column job_id: job 0 stands in line 2 already"),
        (PODS + "p,6,1,1,460,,LS,Running,9,8,9\n", "line 2, column deletion_time: 8 is before the creation at 9"),
        (PODS + "p,6,1,1,460,,LS,Running,7,8,9\n", "line 2, column scheduled_time: 9 is after the deletion at 8"),
        (PODS + "p,6,1,2,0,,LS,Running,7,8,7\n", "line 2, column gpu_milli: is 0, but num_gpu is 2"),
        (SAMPLES["nodes"], "line 1: is a nodes file; a trace of jobs is needed"),
        (PHILLY + '0,0,1,"5\n', "line 2: is not valid CSV"),
    ],
)
def test_invalid_cell_is_refused_with_line_and_column(text: str, said: str, tmp_path: Path) -> None:
    assert str(refusal(tmp_path, text)).startswith(f"trace.csv, {said}")


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_bytes(PHILLY.encode() + b"\xff,0,1,5\n")

    with pytest.raises(TraceError, match=r"trace\.csv, line 1: is not UTF-8 text"):
        read_trace(path)


def test_the_traces_kept_here_are_read_whole() -> None:
    counts = {
        path.name: len(read_trace(path, workload=6 if "workloads" in path.name else None).jobs)
        for path in sorted(TRACES.glob("*.csv"))
    }

    assert counts == {
        "philly_0e4a51.csv": 1435, "philly_103959.csv": 1934, "philly_ee9e8c.csv": 1511,
        "philly_6214e9.csv": 41226, "tiresias_60.csv": 60,
        "pollux_workloads_1.0.csv": 160,
    }  # fmt: skip
