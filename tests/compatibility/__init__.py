"""Pool directories that former releases wrote, and the tests that the present code takes them up."""
