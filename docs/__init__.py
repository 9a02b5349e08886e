"""Sources of the documentation site, and the code that renders the reference from the product."""
