"""Exact mode: the same numbers for every number of learners."""
