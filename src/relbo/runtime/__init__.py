"""What is about Python and XLA, and not about inference."""
