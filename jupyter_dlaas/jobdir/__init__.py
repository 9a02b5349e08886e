"""Files of a job's directory: layout, journal, log index, checkpoint manifests. Standard library only."""
