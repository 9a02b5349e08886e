"""The line between a learner and its guardian: heartbeat, requests, boundaries."""
