"""The report: a summary as one HTML file that needs no other; and the colours of methods in all charts."""

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Methods in order: Okabe and Ito's, which colour-blind readers can tell apart, without the yellow."""
ON_DARK = (*COLOURS[:-1], "#F2F2F2")
"""The same on a dark page."""
