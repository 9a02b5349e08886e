"""Records on the wire: protocol, journal, and their coding as JSON. Standard library only."""
