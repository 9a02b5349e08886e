"""The process of one learner: start, the program as `__main__`, shutdown, failure report."""
