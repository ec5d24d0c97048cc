"""Base families: noise (normal, laplace, student-t) x scale (diagonal, low-rank, full), truncated, flows, NumPyro's."""

from relbo.families.base import AbstractFamily, Box
from relbo.families.flow import FlowFamily, FlowMember
from relbo.families.location_scale import LocationScale, LocationScaleParams
from relbo.families.noise import AbstractNoise, Laplace, Normal, StudentT
from relbo.families.numpyro_adapter import NumPyroFamily, from_numpyro
from relbo.families.registry import DENSE_LIMIT, family_names, resolve_family
from relbo.families.scale import AbstractScale, Cholesky, Diagonal, LowRank
from relbo.families.truncated import TruncatedNormal, TruncatedNormalParams

__all__ = [
    "DENSE_LIMIT",
    "AbstractFamily",
    "AbstractNoise",
    "AbstractScale",
    "Box",
    "Cholesky",
    "Diagonal",
    "FlowFamily",
    "FlowMember",
    "Laplace",
    "LocationScale",
    "LocationScaleParams",
    "LowRank",
    "Normal",
    "NumPyroFamily",
    "StudentT",
    "TruncatedNormal",
    "TruncatedNormalParams",
    "family_names",
    "from_numpyro",
    "resolve_family",
]
