"""Baselines and ablations."""
