"""What can be said about a model and its data before or after training; returns data, draws nothing."""
