"""Names of families: what a string given as `family=` means."""

from relbo.families.base import AbstractFamily
from relbo.families.flow import FlowFamily
from relbo.families.location_scale import LocationScale
from relbo.families.noise import AbstractNoise, Laplace, Normal, StudentT
from relbo.families.scale import AbstractScale, Cholesky, Diagonal, LowRank
from relbo.families.truncated import TruncatedNormal
from relbo.runtime.choices import did_you_mean

DENSE_LIMIT = 256
"""Up to this dimension a full covariance is the default; beyond it, diagonal components."""

NOISES: dict[str, AbstractNoise] = {"normal": Normal(), "laplace": Laplace(), "student_t": StudentT()}
SCALES: dict[str, AbstractScale] = {"mean_field": Diagonal(), "low_rank": LowRank(), "full": Cholesky()}
OTHERS: dict[str, AbstractFamily] = {"truncated_normal": TruncatedNormal(), "flow": FlowFamily()}


def family_names() -> list[str]:
    """Every string that `family=` understands."""
    return [*NOISES, *(f"{scale}_{noise}" for scale in SCALES for noise in NOISES), *OTHERS]


def resolve_family(family: str | AbstractFamily, dim: int) -> AbstractFamily:
    """The family of a name; a bare noise name takes the full scale up to `DENSE_LIMIT` dimensions, diagonal beyond."""
    if isinstance(family, AbstractFamily):
        return family
    if family not in family_names():
        hint = did_you_mean(str(family), family_names())
        raise ValueError(f"Unknown family {family!r}. {hint}Choose one of {family_names()}, or give a family object.")
    if family in OTHERS:
        return OTHERS[family]
    for scale_name, scale in SCALES.items():
        if family.startswith(scale_name + "_"):
            return LocationScale(NOISES[family.removeprefix(scale_name + "_")], scale)
    return LocationScale(NOISES[family], Cholesky() if dim <= DENSE_LIMIT else Diagonal())
