"""Client of an engine: discovery, requests and the event stream of a job."""
