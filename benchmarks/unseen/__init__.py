"""Models as a new user writes them, each through its own door, with references to hold the fits against."""

from unseen.base import Case, load_reference, reference_path
from unseen.jax_cases import CASES as JAX
from unseen.numpyro_cases import CASES as NUMPYRO
from unseen.pymc_cases import CASES as PYMC
from unseen.stan_cases import CASES as STAN

CASES: dict[str, Case] = {case.name: case for case in (*NUMPYRO, *PYMC, *STAN, *JAX)}

__all__ = ["CASES", "Case", "load_reference", "reference_path"]
