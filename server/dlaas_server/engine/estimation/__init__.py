"""Estimates from history: run lengths of jobs, start times, time left."""
