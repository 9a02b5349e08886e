"""Capture of progress and metrics from what a program prints and draws."""
