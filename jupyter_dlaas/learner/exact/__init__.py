"""Exact mode: bitwise identical results for every number of learners."""
