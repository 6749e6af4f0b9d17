"""Trained models to take away: export, a runtime without JAX, models that come with the package."""
