"""Public Python API: jobs, the decorator `@dlaas.train`, option parsing and the sources of a program."""
