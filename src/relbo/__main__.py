"""`python -m relbo`: the command line."""

from relbo.cli import main

main()
