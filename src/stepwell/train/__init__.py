"""Training on accelerate: the step, the loop around it, and what a checkpoint holds."""
