"""Recipes: small TOML files, workloads and methods apart, checked as a whole before any work."""
