"""The method of the paper, phase by phase; `pipeline` is where to start."""
