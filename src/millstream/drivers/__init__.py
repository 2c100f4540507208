"""Job delivery: one contract, and its implementations."""
