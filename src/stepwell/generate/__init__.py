"""Making images from a trained network, through diffusers' schedulers."""
