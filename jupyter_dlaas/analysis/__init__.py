"""Static analysis of a notebook's cells: names, effects, calls and data flow. Pure."""
