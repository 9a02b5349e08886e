"""Replay of a trace in virtual time, and its report."""
