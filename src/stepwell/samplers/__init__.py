"""Timestep samplers: static densities, learners, and the combinators that shape both."""
