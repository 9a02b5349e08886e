"""Display of a job in a notebook: live widget, plain HTML, number formatting."""
