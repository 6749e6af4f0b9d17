"""Imagination: policies are tried in a learned model of the dynamics before one of them acts."""
