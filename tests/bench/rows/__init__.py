"""The rows of the table. Each module measures one thing: `measure(bench)` gives its lines."""
