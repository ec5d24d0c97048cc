"""Names and defaults: what a user says, made into objects."""
