"""What pictures and pages show of a posterior, as plain arrays: nothing here draws."""
