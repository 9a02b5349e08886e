"""Lifecycle of a job: how requests, decisions and facts change it."""
