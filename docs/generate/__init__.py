"""Reference pages as Markdown, rendered from the code that they describe. Imports no Sphinx."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from docs.generate import commands, configuration, decisions, environment, errors, rest, states

__all__ = ["PARTS"]

PARTS: Final[Mapping[str, Callable[[], str]]] = {
    "config": configuration.tables,
    "server-options": configuration.server_options,
    "lab-settings": configuration.lab_settings,
    "train-options": commands.train_options,
    "submit-options": commands.submit_options,
    "magic-verbs": commands.magic_verbs,
    "command-line": commands.command_line,
    "exit-codes": commands.exit_codes,
    "rest-routes": rest.routes,
    "rest-records": rest.records,
    "states": states.states,
    "state-diagram": states.diagram,
    "job-events": states.events,
    "journal-facts": states.facts,
    "causes": errors.causes,
    "failures": errors.failures,
    "api-errors": errors.api_errors,
    "decisions": decisions.listed,
    "environment-user": environment.for_users,
    "environment-job": environment.in_jobs,
    "environment-internal": environment.internal,
}
"""Names that the directive `{dlaas}` accepts, and the functions that render them."""
