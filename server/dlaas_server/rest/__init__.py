"""The REST interface: routes, bodies and their schema."""
