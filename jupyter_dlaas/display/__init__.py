"""The display of a job in a notebook: live widget, plain HTML, formatted figures."""
