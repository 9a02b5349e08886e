"""Experiments that compare schedulers, by name."""
