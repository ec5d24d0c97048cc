"""Stan: a program and its data as a target."""

from relbo.targets.stan.target import StanTarget, from_stan

__all__ = ["StanTarget", "from_stan"]
