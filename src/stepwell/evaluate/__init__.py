"""How good a model is: held-out loss per noise band, bits per dimension, distances between sets of images."""
