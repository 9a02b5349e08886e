"""Command line `jupyter dlaas`: parser, verbs and tables for a terminal."""
