"""Everything that can be named: one table feeds the library, the command line, the docs and the tests.

Reading the catalogue imports no torch; building from it does.
"""
