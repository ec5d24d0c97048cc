"""`diagnose`: make the draws, run the oracle once more, and compute the numbers from plain arrays."""

import math
from dataclasses import dataclass

import jax
import numpy as np

from relbo.diagnostics import estimates
from relbo.diagnostics.defensive import UNCOVERED, NewModes, constrained, draw, new_modes
from relbo.diagnostics.diagnosis import Defensive, Diagnosis
from relbo.diagnostics.modes import confirmed, modes_of
from relbo.diagnostics.parameters import check_parameters, named_columns
from relbo.model.blocks import block_for, block_of
from relbo.posterior.posterior import Posterior
from relbo.records.estimate import Estimate
from relbo.records.outcome import Stop
from relbo.records.trace import Record
from relbo.runtime.compiling import host_split
from relbo.runtime.threads import one_blas_thread
from relbo.targets.stored import StoredTarget

_HEAVY_SHARE = 4  # one draw of the heavy companion for so many of the mixture
_DRAWS, _FEWEST_DRAWS = 10_000, 1_000  # of the mixture, by default; a tail of a hundred draws has a shape
_PART = 0.25  # of the evaluations of the fit: what a diagnosis may draw of a model with many data
_LAST = 3  # iterations, whose gains tell whether the fit was still under way
_MOST_AXES = 64  # evenly chosen: a heavy tail is seldom that of one coordinate


@dataclass(frozen=True)
class Measurements:
    """All that a diagnosis is computed from, as plain arrays and numbers: a stored fit can keep them."""

    log_ratio: np.ndarray
    """log p - log q at draws of the mixture, the first `num_own`, and of its heavy companion."""
    log_heavy: np.ndarray
    at_new_mode: np.ndarray
    num_own: int
    names: tuple[str, ...]
    values: np.ndarray
    """Constrained scalar parameters (columns) at these draws."""
    gap: Estimate
    certifies: str
    modes: tuple[float, ...]
    num_components: int
    irreproducible: float
    decay: float
    trace: tuple[Record, ...]
    stop: Stop
    num_infinite: int = 0


def diagnose(posterior: Posterior, num_draws: int | None = None, seed: int = 0) -> Diagnosis:
    """Measure a posterior on fresh draws, and say in a sentence what the numbers mean.

    By default `num_draws` is 10,000. Of a model with many data it is a quarter of the evaluations of the fit, where
    these are fewer (and at least 1,000): such a fit takes a few thousand. Beside these of the mixture a quarter as many
    are drawn from a heavy-tailed companion and from modes that a fresh search finds, so that tails and modes which the
    mixture never visits are seen. Of a posterior that was loaded without its model, the draws and the trace in the
    file are read, and nothing is drawn.
    """
    num_draws = _default_draws(posterior) if num_draws is None else num_draws
    if num_draws < 100:
        raise ValueError(f"num_draws must be at least 100, got {num_draws}: a tail fit needs a tail.")
    if posterior.target.stored is not None:
        return diagnosis_of(stored_measurements(posterior, posterior.target.stored))
    return diagnosis_of(measure(posterior, num_draws, seed))


def _default_draws(posterior: Posterior) -> int:
    few_at_once = block_of(posterior.whitened) < block_for(posterior.dim)  # because of the length of the data
    if not few_at_once and not posterior.target.streams:
        return _DRAWS
    return int(np.clip(_PART * posterior.num_evaluations, _FEWEST_DRAWS, _DRAWS))


def measure(posterior: Posterior, num_draws: int, seed: int) -> Measurements:
    """Everything that needs the model or a device."""
    with one_blas_thread(posterior.target.on_host() is None):
        return _measured(posterior, num_draws, seed)


def _measured(posterior: Posterior, num_draws: int, seed: int) -> Measurements:
    mode_key, draw_key, oracle_key, gap_key = host_split(jax.random.fold_in(jax.random.key(seed), 0x5EED), 4)
    modes = new_modes(mode_key, posterior)
    sample = draw(draw_key, posterior, num_draws, num_draws // _HEAVY_SHARE, modes)
    names, values = named_columns(constrained(posterior, sample.points), posterior.target.first_index)
    return Measurements(
        log_ratio=sample.log_ratio,
        log_heavy=sample.log_heavy,
        at_new_mode=sample.at_new_mode,
        num_own=num_draws,
        names=tuple(names),
        values=values,
        gap=_gap(oracle_key, gap_key, posterior, modes),
        certifies=_certificate(posterior),
        modes=tuple(float(weight) for weight in confirmed(modes_of(posterior))),
        num_components=posterior.num_components,
        irreproducible=sample.irreproducible,
        decay=_decay(posterior),
        trace=tuple(posterior.trace),
        stop=posterior.stop,
        num_infinite=sample.num_infinite,
    )


def stored_measurements(posterior: Posterior, target: StoredTarget) -> Measurements:
    """What a file says: ratios at the mixture's own draws, the last gap of the trace; no look at tails and modes."""
    if target.draws is None:
        raise ValueError(
            "The file that this posterior comes from holds no draws to judge it by (it is a checkpoint, or was saved "
            "with num_draws=0). Attach the target, relbo.load(path, target=target); or read posterior.trace."
        )
    draws = target.draws
    if draws.num < 100:
        raise ValueError(f"The file holds {draws.num} draws, and a tail fit needs at least 100: save with more.")
    ratio = (draws.log_p - draws.log_q).astype(np.float64)
    names, values = named_columns(draws.values, target.first_index)
    gaps = [record.gap for record in posterior.trace if record.gap is not None]
    return Measurements(
        log_ratio=np.where(ratio == np.inf, np.nan, ratio),
        log_heavy=np.zeros(draws.num),
        at_new_mode=np.zeros(draws.num, bool),
        num_own=draws.num,
        names=tuple(names),
        values=values,
        gap=gaps[-1] if gaps else Estimate(float("nan"), float("inf"), 0),
        certifies=_certificate(posterior),
        modes=tuple(float(weight) for weight in modes_of(posterior).weights),
        num_components=posterior.num_components,
        irreproducible=0.0,
        decay=math.inf,
        trace=tuple(posterior.trace),
        stop=posterior.stop,
    )


def diagnosis_of(seen: Measurements) -> Diagnosis:
    """The numbers, from plain arrays."""
    num_own = seen.num_own
    own_ratio = seen.log_ratio[:num_own]
    worth = estimates.worth(seen.log_ratio, seen.log_heavy, num_own)
    alone = estimates.weigh(own_ratio)
    log_weight = estimates.balanced(seen.log_ratio, seen.log_heavy, num_own)
    together = estimates.weigh(log_weight, explored=num_own < len(log_weight))
    lacking = seen.log_ratio - worth.log_z.value > UNCOVERED
    return Diagnosis(
        elbo=worth.elbo,
        gap=seen.gap,
        log_z=worth.log_z,
        kl=worth.kl,
        misplaced=estimates.misplaced_mass(together, seen.log_heavy, num_own),
        k_hat=alone.k_hat,
        k_hat_limit=alone.k_hat_limit,
        tail_error=alone.tail_error,
        ess=alone.ess,
        defensive=_defensive(together, alone, seen),
        parameters=check_parameters(list(seen.names), seen.values, together, num_own),
        modes=seen.modes,
        missed_mass=estimates.weighted_share(together, seen.at_new_mode & lacking),
        decay=seen.decay,
        num_draws=num_own,
        num_components=seen.num_components,
        num_nan=int(np.isnan(own_ratio).sum()),
        num_zero=int(np.isneginf(own_ratio).sum()),
        num_infinite=seen.num_infinite,
        irreproducible=seen.irreproducible,
        last_gain=_last_gain(seen.trace),
        stop=seen.stop,
        certifies=seen.certifies,
    )


def _defensive(together: estimates.Weighted, alone: estimates.Weighted, seen: Measurements) -> Defensive:
    return Defensive(
        k_hat=together.k_hat,
        k_hat_limit=together.k_hat_limit,
        stake=together.stake,
        ess=together.ess,
        num_draws=len(seen.log_ratio),
        num_nan=int(np.isnan(seen.log_ratio[seen.num_own :]).sum()),
        reliable=together.reliable,
        needed=not alone.k_hat < alone.k_hat_limit,
    )


def _last_gain(trace: tuple[Record, ...]) -> float:
    """What the last iterations improved, a rejected one counting as nothing."""
    last = [record for record in trace if record.improvement is not None and record.kind != "polish"][-_LAST:]
    gains = [float(record.improvement.value) for record in last if record.improvement is not None and record.accepted]
    return sum(gains) / len(last) if last else 0.0


def _gap(oracle_key, gap_key, posterior: Posterior, modes: NewModes) -> Estimate:
    """Towards what the oracle finds now, or towards a mode that the mixture lacks if that gap is larger."""
    booster, mixture = posterior.booster, posterior.mixture
    proposals = booster.propose(oracle_key, posterior.state, mixture)
    candidates = [proposals.best] + ([jax.tree.map(lambda leaf: leaf[0], modes.members)] if modes.any else [])
    door = booster.door(posterior.whitened)
    gaps = [booster.gap(gap_key, door, mixture, params) for params in candidates]
    return max(gaps, key=lambda gap: gap.value)


def _decay(posterior: Posterior) -> float:
    """The least a such that p falls as r^-a along an axis, from ten thousand to a million standard deviations."""
    dim = posterior.dim
    num = min(dim, _MOST_AXES)
    axes = np.zeros((num, dim))
    axes[np.arange(num), np.arange(num) * dim // num] = 1.0
    directions = np.concatenate([axes, -axes])
    points = np.concatenate([1e4 * directions, 1e6 * directions])
    near, far = np.split(posterior.booster.door(posterior.whitened).numbers(points, "checks")[0], 2)
    with np.errstate(invalid="ignore"):
        slopes = (near - far) / math.log(1e2)
    return float(np.min(slopes[~np.isnan(slopes)], initial=math.inf))  # NaN: p is zero there, or overflows


def _certificate(posterior: Posterior) -> str:
    box = getattr(posterior.mixture.family, "box", None)
    bounds = "" if box is None else f", |location| <= {box.loc:g} and |log scale| <= {box.log_scale:g}, whitened"
    return f"bounds what components can still gain, as far as the oracle is exact{bounds}"
