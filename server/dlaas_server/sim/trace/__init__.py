"""Traces of jobs and nodes, and the file formats they come in."""
