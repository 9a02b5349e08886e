"""Kernel side: magics, a recorder of executed cells, submission, and outputs that follow their jobs."""
