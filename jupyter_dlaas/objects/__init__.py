"""Objects of a program: what they hold, and whether it changed."""
