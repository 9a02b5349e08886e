"""Fencing of a job: the guardian's lock and sockets, and the watchdogs behind it."""
