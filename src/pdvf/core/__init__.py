"""Arrays, networks, fitting, devices, processes: knows nothing of families, methods or runs."""
