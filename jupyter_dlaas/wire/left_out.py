"""Name of the variable with what the environment of a learner lacks. Standard library only."""

from __future__ import annotations

from typing import Final

__all__ = ["LEFT_OUT"]

LEFT_OUT: Final = "DLAAS_LEFT_OUT"
"""Variable with the names of the submitter's variables that are not sent to a learner, separated by commas."""
