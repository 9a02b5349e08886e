"""Objects of a program: their parts, and whether they changed."""
