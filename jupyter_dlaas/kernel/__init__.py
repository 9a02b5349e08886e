"""The kernel's side of a job: magics, a recorder of executed cells, submission, and output that follows it."""
