"""What a person may read, in plain numbers: estimates, how a fit ended, one record an iteration."""
