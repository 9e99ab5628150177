"""Okabe and Ito's colours, which colour-blind readers can tell apart."""

from __future__ import annotations

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""In the order in which methods take them; their yellow is left out: it drowns on white."""

ON_DARK = (*COLOURS[:-1], "#F2F2F2")
"""The same on a dark page, where black would drown."""
