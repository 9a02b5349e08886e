"""Planning: one pass over all jobs that decides starts, preemptions and waits."""
