"""Embeddings of policies and of dynamics (section 3.3)."""
