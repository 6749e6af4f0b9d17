"""Adaptation: infer z_d, select z_pi, play one episode (section 3.5)."""

from pdvf.adapt.adapter import Adaptation, Adapter, ClosedForm, Selector, adapt_episodes

__all__ = ["Adaptation", "Adapter", "ClosedForm", "Selector", "adapt_episodes"]
