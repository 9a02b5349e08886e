"""Guardian of a job: starts, watches and ends its learners, and writes the journal."""
