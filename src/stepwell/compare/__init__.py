"""Comparing runs: curves, tables and pictures."""
