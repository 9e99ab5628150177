"""The run directory: written by training, read by all other commands. Standard library only."""
