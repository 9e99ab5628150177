"""What the pacer is made of: a pace, a count of updates, hooks on optimizers, a watch on `loss_at`."""
