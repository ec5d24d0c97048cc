"""One iteration of boosting, and the rules that end it."""
