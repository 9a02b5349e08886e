"""The client of an engine: discovery, requests, and the stream of a job's events."""
