"""Estimates from history: lengths of jobs, start times, time left."""
