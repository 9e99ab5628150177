"""Interfaces, value types and small mathematics. Needs torch and nothing else."""
