"""Suggestion of changes to a notebook: training loops rewritten as elastic jobs. Pure."""
