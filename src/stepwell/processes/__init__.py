"""Noise processes: discrete schedules, flow matching, EDM, and whatever a scheduler object describes."""
