"""The command line: one file a verb. Importing it never imports torch."""
