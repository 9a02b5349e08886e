"""Suggestion of changes to a notebook: training loops rewritten to run as elastic jobs. Pure."""
