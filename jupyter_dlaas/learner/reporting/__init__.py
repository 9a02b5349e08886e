"""Reports of a learner: metrics, progress, figures, notes on the card."""
