"""Records on the wire: REST protocol, journal, and their encoding as JSON. Standard library only."""
