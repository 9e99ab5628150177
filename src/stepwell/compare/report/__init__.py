"""The report: a summary as one HTML file that needs no other; and the colours of methods in all charts."""

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Methods in order: Okabe and Ito's, which colour-blind readers can tell apart, without the yellow."""
ON_DARK = (*COLOURS[:-1], "#F2F2F2")
"""The same on a dark page."""
DENSITY = ("#0b4a7a", "#3b8bc2", "#a9cfe6", "#f4f1eb", "#f6c08f", "#e07b28", "#9a3b00")
"""Densities, on a logarithmic scale: blue is drawn less often than uniform, orange more often."""
DENSITY_ON_DARK = ("#9ad4ff", "#3f97d0", "#1f5378", "#262a31", "#7d441b", "#dd7a2a", "#ffc993")
