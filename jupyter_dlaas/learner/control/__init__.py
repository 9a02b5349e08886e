"""The connection between a learner and its guardian: heartbeat, requests, boundaries."""
