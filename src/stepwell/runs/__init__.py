"""The run directory: written by training, read by everything after it. Standard library only."""
