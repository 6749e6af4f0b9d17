"""Runs and what is done with many of them: store, stages, comparison, sweep, reproduction, checks."""
