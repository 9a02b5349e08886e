"""Transfer of objects between kernel and job by value."""
