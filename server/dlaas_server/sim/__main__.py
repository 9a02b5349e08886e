"""`python -m dlaas_server.sim TRACE --pool 16x8 --order fifo-skip`: replay a trace and print the results.

`python -m dlaas_server.sim history --order las` replays the pool's own past; `… pack-spread` and others print
experiments beside their references.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Collection, Sequence
from pathlib import Path

from dlaas_server.core.placement.gang_placement import Layout
from dlaas_server.core.scheduling.ordering import ORDERS
from dlaas_server.core.scheduling.scheduler import Policy, Share
from dlaas_server.sim.experiments.calibration import WithEstimates, part_of, scores, scores_table
from dlaas_server.sim.experiments.fill_cluster import filled_json, filled_table
from dlaas_server.sim.experiments.fragmentation import filled_by
from dlaas_server.sim.experiments.registry import EXPERIMENTS
from dlaas_server.sim.muri.workload import RULES as MURI
from dlaas_server.sim.muri.workload import play as play_muri
from dlaas_server.sim.options import check_experiment, check_replay, fills, policies
from dlaas_server.sim.replay.event_loop import Replay, Rule, Unrunnable, replay
from dlaas_server.sim.replay.gc_pause import collector_at_rest
from dlaas_server.sim.replay.history import Past, read_past
from dlaas_server.sim.replay.plot import plot
from dlaas_server.sim.replay.production import ByCore
from dlaas_server.sim.replay.report import as_json, compared, table, write_jobs
from dlaas_server.sim.replay.spot import has_spot, marked, parted
from dlaas_server.sim.rules.fgd import FILLERS
from dlaas_server.sim.rules.names import RULES, pool_rule
from dlaas_server.sim.trace.formats import read_nodes, read_trace
from dlaas_server.sim.trace.trace import NodeSpec, Trace
from jupyter_dlaas.client.discovery import pool_directory
from jupyter_dlaas.wire.codec import DlaasError

POLLUX = ("pollux:optimus", "pollux:tiresias")
POOL = re.compile(
    r"(?P<nodes>[1-9]\d{0,5})x(?P<gpus>\d{1,4})(?P<rest>(,(cpus|mem_gb|disk_mbps|net_mbps)=\d+(\.\d+)?)*)"
)


def pool_of(text: str) -> tuple[NodeSpec, ...]:
    """Parse `16x8,cpus=32,mem_gb=128`: 16 nodes with 8 GPUs, 32 CPUs and 128 GB each."""
    found = POOL.fullmatch(text)
    if found is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a valid pool: use NODESxGPUS, as in 16x8 or 16x8,cpus=32,mem_gb=128"
        )
    rest = dict(part.split("=") for part in found["rest"].split(",") if part)
    count, width = int(found["nodes"]), len(found["nodes"])
    return tuple(
        NodeSpec(
            name=f"n{i:0{width}}",
            gpus=int(found["gpus"]),
            cpus=float(rest.get("cpus", 0)),
            mem_gb=float(rest.get("mem_gb", 0)),
            disk_mbps=float(rest.get("disk_mbps", 0)),
            net_mbps=float(rest.get("net_mbps", 0)),
        )
        for i in range(count)
    )


def share(text: str) -> tuple[str, Share]:
    """Parse `research=60`: 60 devices are guaranteed to the queue."""
    name, _, count = text.rpartition("=")
    if not name or not count.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not a valid share: use QUEUE=DEVICES, as in research=60")
    return name, Share(guaranteed=int(count))


def part(text: str) -> tuple[float, float]:
    """Parse `0.5:1`: the second half of the jobs."""
    begin, _, end = text.partition(":")
    try:
        found = float(begin), float(end)
    except ValueError:
        found = 1.0, 0.0
    if not 0 <= found[0] < found[1] <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a valid part: use FROM:TO between 0 and 1, as in 0.5:1")
    return found


def sigma(text: str) -> float:
    """Parse a standard deviation."""
    value = float(text)
    if not 0 <= value <= 10:
        raise argparse.ArgumentTypeError(f"{text} is not a valid σ: use a number between 0 and 10")
    return value


def fraction(text: str) -> float:
    """Parse a fraction."""
    value = float(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not a valid share: use a number between 0 and 1")
    return value


def seconds(text: str) -> float:
    """Parse a duration in seconds; whole numbers stay int, so that integer traces keep integer times."""
    value = float(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a valid time in seconds")
    return int(value) if value == int(value) else value


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    command = argparse.ArgumentParser(
        prog="python -m dlaas_server.sim", description="Replay a trace of jobs in virtual time and report the results."
    )
    command.add_argument(
        "trace",
        help=f"a CSV file, identified by its header; history (the pool's own past); or one of {', '.join(EXPERIMENTS)}",
    )
    command.add_argument("--part", type=part, metavar="FROM:TO", help="only these jobs: 0.5:1 is the second half")
    command.add_argument(
        "--pool-dir", type=Path, metavar="DIR", help="pool whose history is replayed (default: the pool 'local')"
    )
    pool = command.add_mutually_exclusive_group()
    pool.add_argument(
        "--pool",
        type=pool_of,
        metavar="16x8[,cpus=32,mem_gb=128]",
        help="nodes x GPUs of each (default 16x8; for Pollux 16x4, for Muri 8x8)",
    )
    pool.add_argument("--nodes", type=Path, metavar="FILE.csv", help="a list of nodes")
    policy = command.add_mutually_exclusive_group()
    policy.add_argument("--order", choices=ORDERS, help="order of the pool's own scheduler (default shortest)")
    policy.add_argument(
        "--rules", choices=sorted({*RULES, *MURI, *POLLUX, *FILLERS}), help="rules of another simulator"
    )
    command.add_argument(
        "--placement", choices=[layout.value for layout in Layout], help="placement of gangs (default pack)"
    )
    command.add_argument(
        "--restart-s", type=seconds, default=0, help="time that a preempted job loses when it restarts (default 0)"
    )
    command.add_argument(
        "--estimate-error",
        type=sigma,
        default=0.0,
        metavar="SIGMA",
        help="expected lengths are wrong by a log-normal factor with this σ (default 0: exact)",
    )
    command.add_argument(
        "--share",
        type=share,
        action="append",
        default=[],
        metavar="QUEUE=DEVICES",
        help="devices guaranteed to a queue with --order fair",
    )
    command.add_argument(
        "--against",
        action="append",
        default=[],
        choices=sorted({*ORDERS, *RULES, *MURI}),
        metavar="NAME",
        help="another order or other rules to compare with, in the table and the plot; may be repeated",
    )
    command.add_argument(
        "--score-starts",
        action="store_true",
        help="make a start estimate for each waiting job, and report how often it was right",
    )
    command.add_argument(
        "--spot-share",
        type=fraction,
        default=0.0,
        metavar="SHARE",
        help="this share of the jobs, drawn at random, are spot jobs, with rows of their own in the table (default 0)",
    )
    command.add_argument("--no-preemption", action="store_true", help="never preempt running jobs")
    command.add_argument("--workload", type=int, help="workload to replay, if the file has several")
    command.add_argument("--seed", type=int, default=0, help="seed of random numbers (default 0)")
    command.add_argument("--json", action="store_true", help="print JSON instead of a table")
    command.add_argument("--jobs-csv", type=Path, metavar="OUT.csv", help="write one line per job")
    command.add_argument(
        "--plot", type=Path, metavar="OUT.png", help="plot GPUs in use, waiting jobs and completion times"
    )
    return command


def layout(options: argparse.Namespace) -> Layout:
    """Return the placement."""
    return Layout(options.placement or Layout.PACK)


def filled(options: argparse.Namespace, trace: Trace) -> str | None:
    """Return the output for pods that share GPUs: they fill a pool and never end, unless an order is given."""
    if not fills(options, trace):
        return None
    nodes = read_nodes(options.nodes) if options.nodes else options.pool or pool_of("16x8")
    name, gpus = options.rules or layout(options), sum(node.gpus for node in nodes)
    found = filled_by(trace, nodes, options.rules or f"core:{name}", options.seed)
    if options.json:
        return json.dumps(filled_json(trace, name, gpus, options.seed, found), indent=2)
    return filled_table(trace, name, gpus, found)


def run(options: argparse.Namespace, trace: Trace, nodes: Sequence[NodeSpec]) -> tuple[str, Replay]:
    """Replay the trace by the options. Return the policy's name and the result."""
    if trace.format == "pollux" or options.rules in POLLUX:
        return _pollux(trace, options)
    if options.rules in MURI:
        return options.rules, play_muri(trace, nodes, options.rules)
    rule: Rule
    if options.rules:
        name, rule = options.rules, pool_rule(options.rules, nodes)
    else:
        order = options.order or "shortest"
        name = f"{order}, {layout(options)}"
        rule = ByCore(
            nodes,
            Policy(order=order, preempts=not options.no_preemption, shares=dict(options.share)),
            layout(options),
            restart_s=options.restart_s,
            estimate_error=options.estimate_error,
            seed=options.seed,
            lends=has_spot(trace),
        )
    return name, replay(trace, sum(node.gpus for node in nodes), rule, restart_s=options.restart_s)


def _pollux(trace: Trace, options: argparse.Namespace) -> tuple[str, Replay]:
    """Run a workload whose jobs have measured profiles, under its rules or with our core's sizes."""
    try:
        from dlaas_server.sim.pollux.workload import RULES as OF_POLLUX
        from dlaas_server.sim.pollux.workload import play
    except ImportError:
        raise Unrunnable("Pollux' workloads need numpy and scipy: pip install scipy") from None
    name = options.rules or "elastic"
    if name not in OF_POLLUX or options.order:
        raise Unrunnable(f"a Pollux workload takes no --order, and of --rules only {', '.join(POLLUX)}")
    return name, play(
        trace, read_nodes(options.nodes) if options.nodes else options.pool or pool_of("16x4"), name
    ).result


def replayed(options: argparse.Namespace, trace: Trace, past: Past | None) -> dict[str, Replay]:
    """Return the results of all requested policies, by name; of a history, first what really happened."""
    usual = pool_of("8x8" if trace.format == "muri" else "16x8")
    nodes = read_nodes(options.nodes) if options.nodes else options.pool or (past.nodes if past else usual)
    results = {"as it was": past.as_it_was} if past else {}
    name, result = run(options, trace, nodes)
    results[name] = result
    for other in options.against:
        order, rules = (other, None) if other in ORDERS else (None, other)
        name, result = run(argparse.Namespace(**{**vars(options), "order": order, "rules": rules}), trace, nodes)
        results[name] = result
    return results


def scored(options: argparse.Namespace, trace: Trace) -> str:
    """Return the scores of start estimates in this trace."""
    nodes = read_nodes(options.nodes) if options.nodes else options.pool or pool_of("16x8")
    policy = Policy(
        order=options.order or "shortest",
        preempts=not options.no_preemption,
        shares=dict(options.share),
        spot_notice_s=0.0,  # in a replay spot jobs leave at once
    )
    core = ByCore(
        nodes,
        policy,
        layout(options),
        restart_s=options.restart_s,
        estimate_error=options.estimate_error,
        seed=options.seed,
        lends=has_spot(trace),
    )
    rule = WithEstimates(core, options.estimate_error)
    replay(trace, sum(node.gpus for node in nodes), rule, restart_s=options.restart_s)
    return f"{trace.name}, {policy.order}, start estimates\n{scores_table(scores(rule.estimates))}"


def answer(options: argparse.Namespace, given: Collection[str]) -> str:
    """Return the output. Raises DlaasError, OSError."""
    past = read_past(options.pool_dir or pool_directory()) if options.trace == "history" else None
    trace = past.trace if past else read_trace(Path(options.trace), options.workload)
    if options.part:
        trace = part_of(trace, *options.part)
    if options.spot_share:
        trace = marked(trace, options.spot_share, options.seed)
    if has_spot(trace) and any(name not in ORDERS for name in policies(options, trace)):
        raise Unrunnable("rules of other simulators have no spot jobs: choose an --order")
    check_replay(given, options, trace)
    full = filled(options, trace)
    if full is not None:
        return full
    if options.score_starts:
        return scored(options, trace)
    results = replayed(options, trace, past)
    asked = next(name for name in results if name != "as it was")
    if options.jobs_csv:
        write_jobs(options.jobs_csv, results[asked])
    if options.plot:
        plot(options.plot, results)
    results = (parted(results[asked]) if len(results) == 1 else {}) or results
    if options.json:
        all_of_them = [as_json(name, options.seed, result) for name, result in results.items()]
        return json.dumps(all_of_them if len(all_of_them) > 1 else all_of_them[0], indent=2)
    left_out = f"\n{past.left_out} jobs that never started, or have not ended, are left out" if past else ""
    return (compared(results) if len(results) > 1 else table(asked, results[asked])) + left_out


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Return 0; or 2, with a sentence, if the trace, the nodes or a file are invalid."""
    command = parser()
    options = command.parse_args(argv)
    given = {name for name, value in vars(options).items() if value != command.get_default(name)}
    try:
        with collector_at_rest():
            if options.trace in EXPERIMENTS:
                check_experiment(given, options.trace)
                text = EXPERIMENTS[options.trace](options.seed)
            else:
                text = answer(options, given)
        print(text)
    except (DlaasError, OSError) as error:
        print(f"sim: {_message(error)}", file=sys.stderr)
        return 2
    return 0


def _message(error: DlaasError | OSError) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        what = f"{error.filename}: {error.strerror}"
        if isinstance(error, FileNotFoundError):
            return f"{what}. A trace is a CSV file, history, or one of {', '.join(EXPERIMENTS)}"
        return what
    return str(error)


if __name__ == "__main__":
    sys.exit(main())
