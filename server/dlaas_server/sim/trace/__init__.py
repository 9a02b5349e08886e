"""Traces of jobs and nodes, and their file formats."""
