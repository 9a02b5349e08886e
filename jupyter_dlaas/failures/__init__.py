"""Diagnosis of failures: the table of known failures, with cause and advice for each."""
