"""`python -m dlaas_server.sim`: one table, JSON, one line per job, and plain refusals."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from dlaas_server.sim.__main__ import main
from dlaas_server.sim.replay.report import figures, share_of
from tests.sim.fidelity import MEASURED, pair_id, replayed

TRACES = Path(__file__).parent.parent / "traces"
TRACE = str(TRACES / "tiresias_60.csv")
PHILLY = "job_id,submit_s,gpus,duration_s\n"


def test_table_has_all_figures(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([TRACE, "--pool", "2x8", "--rules", "tiresias:fifo"]) == 0

    said = capsys.readouterr().out
    assert said.splitlines()[0] == "tiresias_60, tiresias:fifo, 16 GPUs"
    for label in ("average JCT", "p50", "p95", "p99", "makespan", "queueing", "preemptions", "utilisation", "fragment"):
        assert label in said


@pytest.mark.parametrize("pair", MEASURED, ids=pair_id)
def test_the_figures_are_those_that_the_original_printed(pair: tuple[str, str]) -> None:
    found, theirs = figures(replayed(pair)), MEASURED[pair]

    assert (found.jct_p50_s, found.jct_p95_s, found.jct_p99_s) == (theirs.p50_s, theirs.p95_s, theirs.p99_s)
    assert round(found.utilisation, 4) == theirs.utilisation


def test_json_holds_the_figures_and_the_policy(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([TRACE, "--pool", "2x8", "--rules", "tiresias:dlas", "--json"]) == 0

    said = json.loads(capsys.readouterr().out)
    assert (said["policy"], said["jobs"], said["jct_p50_s"]) == ("tiresias:dlas", 60, 130)


def test_every_job_gets_its_line(tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    trace = tmp_path / "trace.csv"
    trace.write_text(PHILLY + "a,0,8,10\nb,4,8,10\n")

    assert main([str(trace), "--pool", "1x8", "--order", "fifo", "--jobs-csv", str(out)]) == 0

    with out.open(newline="") as file:
        lines = list(csv.reader(file))
    assert lines == [
        ["job_id", "submit_s", "start_s", "end_s", "jct_s", "queue_s", "preemptions"],
        ["a", "0", "0", "10", "10", "0", "0"],
        ["b", "4", "10", "20", "16", "6", "0"],
    ]


def test_a_pool_may_be_a_list_of_nodes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nodes = tmp_path / "nodes.csv"
    nodes.write_text("sn,cpu_milli,memory_mib,gpu,model\nn0,64000,262144,8,P100\nn1,64000,262144,8,P100\n")

    assert main([TRACE, "--nodes", str(nodes), "--placement", "spread"]) == 0
    assert capsys.readouterr().out.startswith("tiresias_60, shortest, spread, 16 GPUs")


def test_a_picture_is_drawn_where_asked(tmp_path: Path) -> None:
    assert main([TRACE, "--pool", "2x8", "--plot", str(tmp_path / "out.png")]) == 0
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


def test_a_picture_of_an_unknown_kind_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([TRACE, "--pool", "2x8", "--plot", str(tmp_path / "out.doc")]) == 2
    assert "out.doc" in capsys.readouterr().err


def test_percentiles_are_elements() -> None:
    assert [share_of([1, 2, 3, 4], share) for share in (0.0, 0.5, 0.99, 1.0)] == [1, 3, 4, 4]


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        ("a,b\n1,2\n", [], "trace.csv, line 1: unknown header"),
        (PHILLY + "a,0,9,10\n", ["--pool", "1x8"], "does not fit an empty pool (1 node, 8 GPUs): say another"),
        (PHILLY + "a,0,9,10\n", ["--pool", "1x8", "--rules", "tiresias:fjf"], "job a (9 GPUs) never runs on this pool"),
    ],
)
def test_unrunnable_trace_is_refused_with_a_message(
    text: str, options: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "trace.csv").write_text(text)

    assert main([str(tmp_path / "trace.csv"), *options]) == 2
    assert said in capsys.readouterr().err


def test_a_file_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nowhere.csv"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(
        "sim: nowhere.csv: No such file or directory. A trace is a CSV file, history, or one of pack"
    )
    assert "Errno" not in said


@pytest.mark.parametrize("pool", ["16", "0x8", "16x8,disk=3", "x"])
def test_a_pool_that_makes_no_sense_is_refused(pool: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([TRACE, "--pool", pool])
    assert "is not a valid pool" in capsys.readouterr().err


def test_an_experiment_is_one_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gang"]) == 0
    assert "jobs that run at once" in capsys.readouterr().out


def test_a_queue_gets_its_share_back_from_a_borrower(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, trace = tmp_path / "out.csv", tmp_path / "trace.csv"
    lines = [f"a{n},0,A,1,1000\n" for n in range(4)] + [f"b{n},100,B,1,50\n" for n in range(2)]
    trace.write_text("job_id,submit_s,queue,gpus,duration_s\n" + "".join(lines))

    options = ["--pool", "1x4", "--order", "fair", "--share", "A=2", "--share", "B=2", "--jobs-csv", str(out)]
    assert main([str(trace), *options]) == 0

    with out.open(newline="") as file:
        found = {row["job_id"]: row for row in csv.DictReader(file)}
    assert [found[f"b{n}"]["start_s"] for n in range(2)] == ["100", "100"]
    assert [found[f"a{n}"]["preemptions"] for n in range(4)] == ["0", "0", "1", "1"]
    assert "preemptions         2" in capsys.readouterr().out


def test_a_share_that_makes_no_sense_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([TRACE, "--order", "fair", "--share", "A"])
    assert "is not a valid share" in capsys.readouterr().err


def test_several_policies_stand_side_by_side_and_in_one_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = str(tmp_path / "out.png")
    options = ["--pool", "2x8", "--order", "fifo", "--against", "las", "--against", "tiresias:fifo", "--plot", picture]
    assert main([TRACE, *options]) == 0

    head = capsys.readouterr().out.splitlines()[1].split()
    assert head == ["fifo,", "pack", "las,", "pack", "tiresias:fifo"]
    assert Path(picture).read_bytes().startswith(b"\x89PNG")


def test_a_part_of_a_trace_may_be_replayed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([TRACE, "--pool", "2x8", "--part", "0.5:1"]) == 0
    assert "jobs                30" in capsys.readouterr().out


def test_start_estimates_are_scored_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([TRACE, "--pool", "2x8", "--order", "fifo", "--score-starts"]) == 0
    assert "within a minute or 25 %" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["fair-share", "slices"])
def test_experiments_on_sharing_are_one_command_each(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name]) == 0
    assert "wanted" in capsys.readouterr().out


def test_the_history_of_no_pool_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["history", "--pool-dir", str(tmp_path)]) == 2
    assert "say --pool-dir" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--part=1:0", "is not a valid part"),
        ("--part=x", "is not a valid part"),
        ("--estimate-error=-1", "is not a valid σ"),
    ],
)
def test_options_that_make_no_sense_are_refused(option: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([TRACE, option])
    assert said in capsys.readouterr().err


def test_spot_share_gets_rows_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([TRACE, "--pool", "2x8", "--order", "fifo-skip", "--spot-share", "0.3", "--seed", "1", "--json"]) == 0

    everyone, ordinary, spot = json.loads(capsys.readouterr().out)
    assert (everyone["jobs"], ordinary["jobs"] + spot["jobs"]) == (60, 60)
    assert ordinary["preemptions"] == 0 < spot["preemptions"]


def test_ordinary_jobs_end_as_if_there_were_no_spot_jobs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On one node, where all seats are as good as each other."""
    lines = [f"{n},{n * 7 % 300},A,{1 + n % 4},{30 + n * 37 % 200}" for n in range(60)]
    lines.sort(key=lambda line: int(line.split(",")[1]))
    both, alone = tmp_path / "both.csv", tmp_path / "alone.csv"
    header = "job_id,submit_s,queue,gpus,duration_s"
    both.write_text("\n".join([f"{header},spot", *(f"{line},{n % 2}" for n, line in enumerate(lines))]) + "\n")
    alone.write_text("\n".join([header, *(line for n, line in enumerate(lines) if n % 2 == 0)]) + "\n")

    assert main([str(both), "--pool", "1x8", "--order", "fifo-skip", "--json"]) == 0
    _, ordinary, _ = json.loads(capsys.readouterr().out)
    assert main([str(alone), "--pool", "1x8", "--order", "fifo-skip", "--json"]) == 0
    assert ordinary["jct_avg_s"] == json.loads(capsys.readouterr().out)["jct_avg_s"]


def test_others_rules_know_no_spot_jobs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([TRACE, "--rules", "tiresias:fifo", "--spot-share", "0.5"]) == 2

    assert capsys.readouterr().err == "sim: rules of other simulators have no spot jobs: choose an --order\n"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--rules muri:srtf --restart-s 60", "muri:srtf takes no --restart-s: leave it out, or choose an --order"),
        (
            "--rules tiresias:fifo --placement pack --estimate-error 1",
            "tiresias:fifo takes no --estimate-error and no --placement: leave them out, or choose an --order",
        ),
        ("--order las --share A=2", "las takes no --share: leave it out, or choose --order fair"),
        ("--order las --restart-s 60 --against muri:srtf", "muri:srtf takes no --restart-s: leave it out"),
        ("--rules tiresias:fifo --no-preemption", "tiresias:fifo takes no --no-preemption: leave it out"),
        ("--rules tiresias:fifo --score-starts", "tiresias:fifo takes no --score-starts: leave it out"),
        ("--score-starts --json --against las", "--score-starts takes no --against and no --json: leave them out"),
        ("--pool-dir x", "shortest takes no --pool-dir: leave it out"),
        ("--against tiresias:fifo --spot-share 0.5", "rules of other simulators have no spot jobs: choose an --order"),
    ],
)
def test_an_option_that_nothing_here_heeds_is_refused(
    options: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([TRACE, "--pool", "2x8", *options.split()]) == 2
    assert capsys.readouterr().err.startswith(f"sim: {said}")


def test_estimate_errors_apply_only_to_our_orders(capsys: pytest.CaptureFixture[str]) -> None:
    options = "--pool 2x8 --order shortest --estimate-error 1 --restart-s 60 --against tiresias:dlas-gpu"

    assert main([TRACE, *options.split()]) == 0


@pytest.mark.parametrize("option", ["--pool=2x8", "--order=las", "--json", "--placement=spread"])
def test_an_experiment_takes_only_a_seed(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gang", option]) == 2
    assert capsys.readouterr().err.startswith("sim: the experiment gang takes no --")
    assert main(["gang", "--seed", "1"]) == 0


def test_a_pool_that_is_filled_takes_a_placement_or_rules(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "pods.csv"
    path.write_text("name,cpu_milli,memory_mib,num_gpu,gpu_milli\np,1000,64,1,500\n")
    refused = [("--restart-s=9", "restart-s"), ("--score-starts", "score-starts"), ("--against=las", "against")]

    for options, name in [*refused, ("--rules=fgd --placement=pack", "placement")]:
        assert main([str(path), "--pool", "2x2", *options.split()]) == 2
        assert f"a pool that is filled takes no --{name}: leave it out" in capsys.readouterr().err


def test_replay_has_no_spot_notice(
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = "--pool 2x8 --order fifo-skip --score-starts --spot-share 0.4 --seed 2"

    assert main([TRACE, *options.split()]) == 0
    assert "80 % interval holds         100.0%" in capsys.readouterr().out
