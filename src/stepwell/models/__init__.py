"""Networks behind one call: (input, time, condition) -> output."""
