"""Arguments and help of `jupyter dlaas`: verbs in groups, each with an example."""

from __future__ import annotations

import argparse
import difflib
import re
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from jupyter_dlaas._version import __version__
from jupyter_dlaas.api import option_parsing
from jupyter_dlaas.wire.protocol import PoolOrder, PoolPlacement

__all__ = ["GROUPS", "VERBS", "build"]


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb of the command line: one sentence on what it does, and a complete example."""

    name: str
    summary: str
    example: str
    of_job: bool = False
    takes_several: bool = False
    """True if it takes several jobs, or all of the user's jobs in a state."""


GROUPS: Final[dict[str, tuple[Verb, ...]]] = {
    "Submit and follow jobs": (
        Verb(
            "submit",
            "Submit a script: submit FILE [options] [-- script arguments]",
            "submit train.py --gpus 1:4",
        ),
        Verb("jobs", "List jobs: running, next in the queue, newest", "jobs --state QUEUED,PROCESSING"),
        Verb("attach", "Follow a job's state and log; Ctrl-C detaches", "attach resnet-48", of_job=True),
        Verb("logs", "Show the learners' logs", "logs resnet-48 --follow", of_job=True),
        Verb("why", "Explain why a job is in its current state", "why resnet-48", of_job=True),
        Verb("events", "Show the events of a job: requests, decisions, failures", "events resnet-48", of_job=True),
    ),
    "Change jobs": (
        Verb("scale", "Set the number of learners of a job", "scale resnet-48 4", of_job=True),
        Verb("priority", "Set the priority of a job", "priority resnet-48 high", of_job=True),
        Verb(
            "halt",
            "Write a checkpoint and release the devices; asks for confirmation if no checkpoint can be written",
            "halt resnet-48",
            takes_several=True,
        ),
        Verb("resume", "Resume halted jobs", "resume resnet-48 resnet-49", takes_several=True),
        Verb(
            "checkpoint",
            "Write a checkpoint at the next step; training continues",
            "checkpoint resnet-48",
            takes_several=True,
        ),
        Verb("cancel", "Cancel jobs permanently", "cancel --state QUEUED", takes_several=True),
        Verb(
            "retry",
            "Retry jobs: submit the same program with the same options as a new job",
            "retry resnet-48",
            takes_several=True,
        ),
        Verb(
            "delete",
            "Delete ended jobs: their records, logs, checkpoints and results",
            "delete resnet-48 resnet-49",
            takes_several=True,
        ),
    ),
    "Get what a job produced": (
        Verb(
            "metrics", "Show a job's metrics: the last value of each, or all records", "metrics resnet-48", of_job=True
        ),
        Verb("results", "List a job's results and how to load them", "results resnet-48", of_job=True),
        Verb(
            "artifacts",
            "List a job's output files and checkpoints, or save one of them",
            "artifacts resnet-48 output/curve.png -o curve.png",
            of_job=True,
        ),
        Verb("source", "Print a job's program, train.py", "source resnet-48", of_job=True),
        Verb(
            "report",
            "Print a report for support: spec, failure, last log lines; secrets masked",
            "report resnet-48 > report.txt",
            of_job=True,
        ),
    ),
    "Administer the pool": (
        Verb(
            "pool",
            "Show where jobs run, devices and the jobs that hold them; use a Kubernetes cluster or this machine "
            "(pool use); change scheduling settings",
            "pool use kubernetes --namespace ml --image registry.example.com/torch:2",
        ),
        Verb(
            "queue",
            "Show waiting jobs in queue order; list, set or remove queues and their shares",
            "queue set research --guaranteed 6",
        ),
        Verb("cordon", "Place no new jobs on a node; running jobs stay", "cordon gpu-a"),
        Verb("uncordon", "Allow jobs on a node again; ends a drain", "uncordon gpu-a"),
        Verb(
            "drain",
            "Empty a node: shrink elastic jobs, move the others, preempt (checkpoint, requeue) last",
            "drain gpu-a --dry-run",
        ),
        Verb("engine", "Show whether the pool's engine is running, or stop it; jobs keep running", "engine status"),
        Verb("serve", "Run the pool's engine in the foreground", "serve"),
        Verb(
            "k8s",
            "Prepare a Kubernetes cluster: print manifests for its administrator, or check what jobs need",
            "k8s check --namespace ml --image registry.example.com/torch:2",
        ),
    ),
    "Work with notebooks": (
        Verb(
            "check",
            "Analyse the training cells of notebooks without running them: required code, missing names",
            "check notebooks/ --suggest",
        ),
    ),
}
VERBS: Final[dict[str, Verb]] = {verb.name: verb for verbs in GROUPS.values() for verb in verbs}


class _VerbParser(argparse.ArgumentParser):
    """Parser of one verb. Reports unknown arguments itself, so that the usage of this verb is shown."""

    takes_several = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        divided = option_parsing.list_with_space(args or ())
        if divided is not None and "--outputs" in self._option_string_actions:
            self.error(divided)
        found, unknown = super().parse_known_args(args, namespace)
        if self.takes_several:  # argparse takes no positional arguments behind an option
            found.names = [*found.names, *(word for word in unknown if not word.startswith("-"))]
            unknown = [word for word in unknown if word.startswith("-")]
        if unknown:
            self.error(
                option_parsing.unknown_argument(
                    unknown[0],
                    self._option_string_actions,
                    help_command=f"{self.prog} --help",
                    words=args or (),
                )
            )
        if self.takes_several and bool(found.names) == (found.state is not None):
            self.error("give the NAME of one or more jobs, or --state" + (", not both" if found.names else ""))
        return found, unknown

    def error(self, message: str) -> NoReturn:
        super().error(option_parsing.ambiguous_argument(message) or message)


class _TopParser(argparse.ArgumentParser):
    """Parser of the command. Lists the verbs in groups and suggests the closest one for an unknown verb."""

    def format_help(self) -> str:
        width = max(map(len, VERBS)) + 2
        lines = [self.format_usage().rstrip(), "", str(self.description)]
        for title, verbs in GROUPS.items():
            lines += ["", f"{title}:", *(f"  {verb.name:{width}}{verb.summary}" for verb in verbs)]
        lines += [
            "",
            "Options, before or after the verb:",
            "  --json       print JSON, in the format of the REST API",
            "  --pool POOL  the pool to use: its name, or its directory (with a slash)",
            "  --version    show the version and exit",
            "",
            "Help on one verb, with its options and an example: jupyter dlaas VERB --help",
            "In a notebook: %load_ext jupyter_dlaas, then %%train? and %dlaas?",
        ]
        return "\n".join(lines) + "\n"

    def error(self, message: str) -> NoReturn:
        unknown = re.match(r"argument VERB: invalid choice: '([^']*)'", message)
        if unknown is not None:
            close = difflib.get_close_matches(unknown[1], VERBS, n=1)
            hint = f"Did you mean {close[0]}?" if close else "For all verbs: jupyter dlaas --help"
            message = f"unknown verb: {unknown[1]}. {hint}"
        super().error(message)


def build() -> argparse.ArgumentParser:
    """Return the parser. The parsed result has `verb` (None if none was given) and the options of that verb."""
    top = _TopParser(prog="jupyter dlaas", description="Submit training jobs to a pool and manage them.")
    top.add_argument(
        "--version", action="version", version=f"jupyter_dlaas {__version__}", help="show the version and exit"
    )
    _common(top, json=False, pool=None)
    parsers = top.add_subparsers(dest="verb", metavar="VERB", parser_class=_VerbParser)
    made = {name: _verb(parsers, verb) for name, verb in VERBS.items()}
    _submit_options(made["submit"])
    made["jobs"].add_argument(
        "--state", metavar="STATES", help="list only jobs in these states, separated by commas: QUEUED,PROCESSING"
    )
    made["jobs"].add_argument(
        "--limit", type=int, default=30, metavar="N", help="maximum number of jobs to list (default: 30)"
    )
    _pool_options(made["pool"])
    _queue_options(made["queue"])
    for name in ("cordon", "uncordon", "drain"):
        made[name].add_argument("node", metavar="NODE", help="a node's name, as listed by `jupyter dlaas pool`")
    made["drain"].add_argument(
        "--dry-run", action="store_true", help="show what would happen to the jobs on the node, then stop"
    )
    made["logs"].add_argument(
        "-f", "--follow", action="store_true", help="follow the log until the job ends or is halted; Ctrl-C detaches"
    )
    made["logs"].add_argument("--member", type=int, metavar="N", help="show only the log of learner N")
    made["scale"].add_argument("learners", metavar="N", help="the new number of learners")
    made["priority"].add_argument(
        "priority", metavar="low|normal|high|INT", help="the new priority; higher priorities start first"
    )
    made["halt"].add_argument(
        "--yes", action="store_true", help="also halt a job that has no checkpoint and would start over"
    )
    made["metrics"].add_argument("--all", action="store_true", help="print all records as JSON, one per line")
    made["artifacts"].add_argument("path", nargs="?", metavar="PATH", help="the file to save, as listed")
    made["artifacts"].add_argument(
        "-o", "--output", metavar="FILE", help="file to write (default: the name in the current directory)"
    )
    made["check"].add_argument(
        "paths", nargs="+", metavar="NOTEBOOK", help="an .ipynb file, or a folder with such files"
    )
    made["check"].add_argument(
        "--cell", type=int, metavar="N", help="check only the N-th code cell, even if it does not look like training"
    )
    made["check"].add_argument(
        "--suggest", action="store_true", help="show the changes that would make the loop elastic"
    )
    made["serve"].add_argument(
        "--idle-s", type=float, default=0.0, metavar="SECONDS", help="exit after this idle time (default: never)"
    )
    made["engine"].add_argument(
        "what", choices=("status", "stop"), help="print whether the engine is running (status), or stop it (stop)"
    )
    made["k8s"].add_argument(
        "arguments",
        nargs=argparse.REMAINDER,
        metavar="manifests|check",
        help="print manifests for an administrator to apply, or check rights, quota, devices and image; "
        "for their options: k8s manifests --help",
    )
    return top


def _verb(parsers: Any, verb: Verb) -> argparse.ArgumentParser:
    parser: _VerbParser = parsers.add_parser(
        verb.name,
        help=verb.summary,
        description=f"{verb.summary}.",
        epilog=f"Example:\n  jupyter dlaas {verb.example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _common(parser, json=argparse.SUPPRESS, pool=argparse.SUPPRESS)
    if verb.of_job:
        parser.add_argument(
            "name", metavar="NAME", help="a job's handle (resnet-48), or its name (resnet) for the newest such job"
        )
    if verb.takes_several:
        parser.takes_several = True
        parser.add_argument(
            "names",
            nargs="*",
            metavar="NAME",
            help="handles of jobs (resnet-48), or their names (resnet), each for the newest such job",
        )
        parser.add_argument(
            "--state",
            metavar="STATES",
            help="all of your jobs in these states, separated by commas, instead of names: QUEUED,PROCESSING",
        )
    return parser


def _common(parser: argparse.ArgumentParser, *, json: Any, pool: Any) -> None:
    parser.add_argument("--json", action="store_true", default=json, help="print JSON, in the format of the REST API")
    parser.add_argument("--pool", default=pool, help="the pool to use: its name, or its directory (with a slash)")


def _pool_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "what",
        nargs="?",
        choices=("use", "events"),
        help="choose where the pool's jobs run (use; the pool must have no unfinished job; with --pool NAME, creates "
        "it if it does not exist), or list requests of administrators and failures of devices (events)",
    )
    add(
        "place", nargs="?", choices=("kubernetes", "local"), help="a Kubernetes cluster, after a check, or this machine"
    )
    add("--context", metavar="C", help="context of the kubeconfig (default: the current one, also later)")
    add("--namespace", metavar="NS", help="namespace for the pool's pods (default: dlaas)")
    add("--image", metavar="IMG", help="image of learners: Python as `python3`, and the frameworks of the jobs")
    add("--kubeconfig", metavar="FILE", help="kubeconfig file (default: KUBECONFIG, or ~/.kube/config)")
    add("--engine-address", metavar="A", help="address at which pods reach this machine (default: found out)")
    add("--gpu-resource", metavar="NAME", help="resource name of GPUs (default: nvidia.com/gpu)")
    add("--no-image", action="store_true", help="do not run a pod with the image to check it")
    add("--force", action="store_true", help="use the cluster although a check failed")
    parser.add_argument(
        "--order", choices=[str(order) for order in PoolOrder], help="queue order among jobs of equal priority"
    )
    parser.add_argument("--preemption", choices=("on", "off"), help="whether running jobs may be preempted")
    parser.add_argument(
        "--placement",
        choices=[str(placement) for placement in PoolPlacement],
        help="default placement of learners on nodes",
    )
    parser.add_argument(
        "--spot-price", type=float, metavar="P", help="weight of a spot job's device in its queue's share, from 0 to 1"
    )
    parser.add_argument(
        "--spot-notice",
        metavar="30s",
        help="time that a spot job gets to write a checkpoint before its devices are reclaimed",
    )


def _queue_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what",
        nargs="?",
        choices=("list", "set", "remove"),
        help="list queues and their shares, set a queue's share, or remove a queue",
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="name of the queue; `set` creates it if needed")
    parser.add_argument(
        "--weight", type=float, metavar="W", help="share of the devices that no queue is guaranteed (default: 1)"
    )
    parser.add_argument("--guaranteed", type=int, metavar="N", help="devices guaranteed to the queue (default: 0)")


def _submit_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("file", metavar="FILE", help="a Python script")
    add("--name", help="name of the job (default: the script's name)")
    add("--gpus", metavar="N|MIN:MAX", help="number of GPUs, one learner each (CPU slots in a pool without GPUs)")
    add("--learners", metavar="N|MIN:MAX", help="number of learners (training processes)")
    add("--gpus-per-learner", metavar="K", help="GPUs per learner (default: 1)")
    add("--cpus", type=float, metavar="N", help="CPUs per learner, such as 2 or 0.5")
    add("--memory", metavar="8G", help="memory per learner; a learner that exceeds it fails")
    add("--gpu-kind", metavar="KIND", help="require GPUs whose name contains this text")
    add("--priority", default="normal", metavar="low|normal|high|INT", help="higher priorities start first")
    add(
        "--queue",
        default="default",
        help="queue whose share the job's devices count against (default: the queue `default`)",
    )
    add(
        "--spot",
        action="store_true",
        help="use only idle devices, at a lower weight, and return them when ordinary jobs need them",
    )
    add("--placement", metavar="pack|spread", help="placement of the learners on nodes (default: the pool's setting)")
    add(
        "--elastic",
        default="manual",
        metavar="off|manual|auto[:CONDITION]",
        help="what may resize the running job: nothing (off), your requests (manual, default), "
        "or measured speed (auto:efficiency=0.2)",
    )
    add(
        "--schedule",
        action="append",
        default=[],
        metavar="'epoch 30: 4 gpus'",
        help="resize the job at the start of these epochs",
    )
    add("--framework", help="training framework (default: detected from the imports)")
    add("--epochs", metavar="N", help="number of epochs, for progress and estimates")
    add("--max-time", metavar="2h", help="halt the job with a checkpoint after this much training time")
    add(
        "--hang-after",
        metavar="10m",
        help="end a learner that makes no progress for this long (default: 30s, or ten steps if that is longer)",
    )
    add("-o", "--outputs", metavar="NAMES", help="variables to return as results, such as model,history")
    add(
        "--include",
        action="append",
        default=[],
        metavar="PATH",
        help="a file or folder to send with the job; relative to --directory",
    )
    add("-e", "--env", action="append", default=[], metavar="K=V", help="an environment variable for the job")
    add(
        "--secret",
        action="append",
        default=[],
        metavar="NAME",
        help="an environment variable to send with the job; its value is masked in logs",
    )
    add("--retries", default=4, metavar="N", help="restarts after failures that may be transient (default: 4)")
    add("--checkpoint-every", default=60.0, metavar="60s", help="time between checkpoints (default: 60s)")
    add("--metric", action="append", default=[], metavar="REGEX", help="read a metric from printed lines")
    add(
        "--autolog",
        default="on",
        metavar="on|off",
        help="read metrics from frameworks, progress bars and printed lines",
    )
    add("--directory", metavar="PATH", help="working directory of the job (default: the current one)")
    add("--interpreter", metavar="PYTHON", help="Python interpreter of the job (default: the current one)")
    add("--wait", action="store_true", help="follow the job until it ends or is halted; Ctrl-C detaches")
    add("--dry-run", action="store_true", help="show the submission and any problems, without submitting")
