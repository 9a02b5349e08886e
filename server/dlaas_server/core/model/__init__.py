"""Records of the scheduler: jobs, nodes, devices, states."""
