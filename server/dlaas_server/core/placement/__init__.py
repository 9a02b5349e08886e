"""Placement of gangs on nodes: free capacity, feasibility, topology, fragmentation."""
