"""Verbs that change jobs: halt, resume, checkpoint, cancel, retry, delete; each takes one job, several, or a state."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from dataclasses import dataclass, field
from typing import Any, Final

from jupyter_dlaas.cli import terminal
from jupyter_dlaas.cli.terminal import Ink
from jupyter_dlaas.client.http import Client
from jupyter_dlaas.wire.codec import DlaasError, Json, encode
from jupyter_dlaas.wire.protocol import ActionId, JobView, NotAllowed, State, Unavailable

__all__ = ["Outcome", "change", "change_several"]

MAX_JOBS: Final = 10_000
"""Maximum number of jobs selected by their state: the engine lists no more."""


@dataclass
class Outcome:
    """Result of a verb for several jobs: what was done, and the errors, each in order."""

    verb: str
    done: list[Any] = field(default_factory=list)
    """Jobs after the request; deleted jobs by handle."""
    errors: dict[str, DlaasError] = field(default_factory=dict)
    """Job, as it was named -> why nothing was done."""

    def as_json(self) -> dict[str, Json]:
        """Return the outcome in the format of the REST API."""
        errors: list[Json] = [{"name": name, **error.as_json()} for name, error in self.errors.items()]
        return {"deleted" if self.verb == "delete" else "jobs": encode(self.done), "errors": errors}

    def summary(self) -> str:
        """Return one line with the jobs for which the verb failed."""
        total = len(self.done) + len(self.errors)
        return f"{self.verb} succeeded for {len(self.done)} of {total} jobs and failed for {', '.join(self.errors)}"


def change(options: Namespace, client: Client, ink: Ink) -> int:
    """Change the one job that was named. Its errors are raised."""
    (name,) = options.names
    if options.verb == "delete":
        name = client.job(name).id
    elif options.verb == "halt" and not options.yes:
        _confirm_halt(client.job(name))
    done = _request(client, options.verb, name)
    print(
        json.dumps({"deleted": done} if options.verb == "delete" else encode(done))
        if options.json
        else _text(done, ink)
    )
    return 0


def change_several(options: Namespace, client: Client, ink: Ink) -> Outcome:
    """Change each of several jobs, and print each result and error. An error of one does not stop the others."""
    outcome = Outcome(options.verb)
    jobs = _in_states(options, client) if options.state is not None else _named(options.names, client, outcome)
    lost: Unavailable | None = None
    for name, view in jobs.items():
        try:
            if lost is not None:
                raise lost
            if options.verb == "halt" and not options.yes:
                _confirm_halt(view)
            outcome.done.append(_request(client, options.verb, view.id))
        except DlaasError as error:
            lost = error if isinstance(error, Unavailable) else None
            outcome.errors[name] = error
        else:
            if not options.json:
                print(_text(outcome.done[-1], ink), flush=True)
    if options.json:
        print(json.dumps(outcome.as_json()))
    elif outcome.errors:
        for line in dict.fromkeys(map(str, outcome.errors.values())):
            print(f"dlaas: {line}", file=sys.stderr)
        if len(outcome.done) + len(outcome.errors) > 1:
            print(f"dlaas: {outcome.summary()}", file=sys.stderr)
    elif not outcome.done:
        print(f"None of your jobs is {options.state.replace(',', ' or ')}.")
    return outcome


def _named(names: list[str], client: Client, outcome: Outcome) -> dict[str, JobView]:
    """Return the jobs as they were named, each once, before any is changed: deleting one gives its name to an older."""
    jobs: dict[str, JobView] = {}
    for name in dict.fromkeys(names):
        try:
            view = client.job(name)
        except Unavailable:
            raise
        except DlaasError as error:
            outcome.errors[name] = error
        else:
            if all(view.id != other.id for other in jobs.values()):
                jobs[name] = view
    return jobs


def _in_states(options: Namespace, client: Client) -> dict[str, JobView]:
    """Return the user's jobs in these states.

    Waiting ones come first, so that none starts when running ones end. Jobs that are to wait again come oldest first.
    """
    views = client.jobs(state=options.state, limit=MAX_JOBS)
    if options.verb in ("resume", "retry"):
        views.reverse()
    else:
        views.sort(key=lambda view: view.state is not State.QUEUED)
    return {view.id: view for view in views}


def _request(client: Client, verb: str, job: str) -> Any:
    if verb != "delete":
        return client.act(job, verb)
    client.delete(job)
    return job


def _text(done: JobView | str, ink: Ink) -> str:
    return f"{done} was deleted" if isinstance(done, str) else terminal.job_text(done, ink)


def _confirm_halt(view: JobView) -> None:
    """Ask at the terminal before a halt that would lose the training. Raises NotAllowed without consent."""
    loss = next((action.confirm for action in view.actions if action.id is ActionId.HALT), None)
    if loss is None:
        return
    if sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty():
        print(f"{view.id}: {loss} Halt it anyway? [y/N] ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() in {"y", "yes"}:
            return
        raise NotAllowed(f"{view.id} was not halted")
    raise NotAllowed(f"{view.id} was not halted. {loss} To halt it anyway: jupyter dlaas halt {view.id} --yes")
