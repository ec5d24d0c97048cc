"""A fit from its first call to its posterior: iterations, progress, warnings, checkpoints."""
