"""The Pacer in other people's frameworks, one file for each; each is imported only by its name."""
