"""A summary as one HTML file that needs nothing else."""
