"""The public API in Python: jobs, the decorator `@dlaas.train`, options and sources of a program."""
