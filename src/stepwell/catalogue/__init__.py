"""All processes, samplers and weightings by name, for the library, the command line, docs and tests.

Reading the catalogue imports no torch; building from it does.
"""
