"""Seen live: an agent that adapts in a page with dials for what is hidden, and a run while it trains."""
