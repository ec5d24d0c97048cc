"""`compare`: a posterior against reference draws, every difference with what chance alone would make of it."""

import math
from typing import Any

import numpy as np
from scipy.special import ndtri

from relbo.comparison.agreement import Agreement, Difference, ModeAgreement, ParameterAgreement
from relbo.comparison.effective import effective_size
from relbo.comparison.reference import Draws, own_draws, read_reference
from relbo.comparison.wasserstein import chance_distances, chance_limit, distance, sliced, sliced_chance_distances
from relbo.diagnostics.modes import modes_of
from relbo.posterior.posterior import Posterior
from relbo.records.estimate import Estimate

FALSE_ALARM = 0.01
"""The probability that two samples of one law exceed any floor."""
_KINDS = 5  # of floors: means, sds, distances, distances along directions, masses of modes
_RISK = FALSE_ALARM / _KINDS
_NUM_DIRECTIONS = 64  # some see a difference that no coordinate alone shows
_CHANCE_ROWS = 2000  # of both samples together: chance is looked at where it is cheap, and scaled


def compare(posterior: Posterior, reference: Any, num_draws: int = 10_000, seed: int = 0) -> Agreement:
    """How far a posterior is from reference draws: means, sds, Wasserstein distances, masses of modes.

    Arguments:
        reference: draws from a long MCMC run, say, as
            - a dict of named arrays in the model's own space, (num, ...) or (chains, num, ...);
            - ArviZ's InferenceData, or a DataTree, with a posterior group;
            - an array (num, dim) or (chains, num, dim) in unconstrained coordinates;
            - another posterior of relbo's.
        num_draws: from the posterior (and from the reference, if it is one).

    Every difference comes with its standard error, and with a floor: what two samples of one law exceed anywhere in
    one comparison of a hundred. Chains count by their effective sample size; a bare sample counts as independent.

    >>> print(relbo.compare(posterior, mcmc.get_samples(group_by_chain=True)))  # doctest: +SKIP
    """
    if num_draws < 100:
        raise ValueError(f"num_draws must be at least 100, got {num_draws}.")
    own = own_draws(posterior, num_draws, seed)
    known = read_reference(reference, posterior, num_draws, seed + 1)
    names, notes = _comparable(own, known)
    ours, theirs = (np.stack([draws.columns[name] for name in names], axis=1) for draws in (own, known))
    ess = np.array([effective_size(theirs[:, column], known.num_chains) for column in range(len(names))])
    points = (ours, theirs) if own.points is None or known.points is None else (own.points, known.points)
    return Agreement(
        parameter_differences(names, ours, theirs, known.num_chains),
        sliced_difference(*points, known.num_chains, np.random.default_rng(seed)),
        _modes(posterior, own, known),
        num_draws,
        len(theirs),
        float(ess.min()),
        [*known.notes, *notes],
    )


def _comparable(own: Draws, known: Draws) -> tuple[list[str], list[str]]:
    """The scalars that both have and that vary, and what to say of the others."""
    shared = [name for name in own.columns if name in known.columns]
    if not shared:
        raise ValueError(
            f"the reference and the posterior have no variable in common: {', '.join(known.columns)} against "
            f"{', '.join(own.columns)}."
        )
    for name in shared:
        if not np.isfinite(known.columns[name]).all():
            raise ValueError(f"the reference draws of {name!r} are not all finite. Leave such draws out.")
    fixed = [name for name in shared if np.ptp(known.columns[name]) == 0]
    if len(fixed) == len(shared):
        raise ValueError("no variable of the reference varies, so there is nothing to compare with.")
    notes = [f"constant in the reference, left out: {', '.join(fixed)}"] if fixed else []
    return [name for name in shared if name not in fixed], notes


def parameter_differences(
    names: list[str], ours: np.ndarray, theirs: np.ndarray, num_chains: int
) -> list[ParameterAgreement]:
    """Column by column of two samples (num, parameters), the second of which may come from chains."""
    ess = np.array([effective_size(column, num_chains) for column in theirs.T])
    centres, scales = theirs.mean(axis=0), theirs.std(axis=0, ddof=1)
    ours, theirs = (ours - centres) / scales, (theirs - centres) / scales
    # For the sd what counts is how well the chains know the squares.
    square_ess = np.array([effective_size(column**2, num_chains) for column in theirs.T])
    chance = chance_limit(chance_distances(np.concatenate([ours, theirs])), _RISK / len(names))
    differences = []
    for index, name in enumerate(names):
        q, reference = ours[:, index], theirs[:, index]
        least = min(ess[index], square_ess[index])
        distances = _distance(q, reference, least, float(chance[index]))
        mean = _mean_error(q, reference, ess[index], _RISK / len(names))
        sd = _sd_error(q, reference, square_ess[index], _RISK / len(names))
        differences.append(ParameterAgreement(name, mean, sd, distances))
    return differences


def _mean_error(q: np.ndarray, reference: np.ndarray, ess: float, risk: float) -> Difference:
    """Both in sds of the reference, whose mean is then zero."""
    std_err = math.sqrt(q.var() / len(q) + 1 / ess)
    return Difference(Estimate(float(q.mean()), std_err, len(q)), _normal_limit(risk) * std_err)


def _sd_error(q: np.ndarray, reference: np.ndarray, ess: float, risk: float) -> Difference:
    r"""By the delta method $\mathrm{sd}(\log \hat\sigma) = \sqrt{(\kappa - 1) / 4n}$ with kurtosis $\kappa$."""
    error = float(q.std(ddof=1)) - 1
    std_err = math.sqrt((_kurtosis(q) - 1) / (4 * len(q)) + (_kurtosis(reference) - 1) / (4 * ess))
    floor = math.expm1(_normal_limit(risk) * std_err)
    return Difference(Estimate(error, (1 + error) * std_err, len(q)), floor)


def _distance(q: np.ndarray, reference: np.ndarray, ess: float, limit: float) -> Difference:
    value, own, theirs = distance(q, reference)
    std_err = math.sqrt(own / len(q) + theirs / ess)
    return Difference(Estimate(value, std_err, len(q)), limit * math.sqrt(1 / len(q) + 1 / ess))


def sliced_difference(ours: np.ndarray, theirs: np.ndarray, num_chains: int, rng: np.random.Generator) -> Difference:
    """Of two samples (num, dim), coordinates in sds of the second."""
    centre, scale = theirs.mean(axis=0), theirs.std(axis=0, ddof=1)
    ours, theirs = (ours - centre) / scale, (theirs - centre) / scale
    directions = rng.standard_normal((_NUM_DIRECTIONS, ours.shape[1]))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    value, own_variance, their_variance = sliced(ours, theirs, directions)
    # The chance distance grows with 1 / ess: the harmonic mean over the directions.
    ess = 1 / np.mean([1 / effective_size(theirs @ one, num_chains) for one in directions])
    each = _CHANCE_ROWS // 2
    rows = [rng.choice(len(part), min(each, len(part)), replace=False) for part in (ours, theirs)]
    pooled = rng.permutation(np.concatenate([ours[rows[0]], theirs[rows[1]]]))
    limit = float(chance_limit(sliced_chance_distances(pooled, directions, rng), _RISK))
    std_err = math.sqrt(own_variance / len(ours) + their_variance / ess)
    return Difference(Estimate(value, std_err, len(ours)), limit * math.sqrt(1 / len(ours) + 1 / ess))


def _modes(posterior: Posterior, own: Draws, known: Draws) -> list[ModeAgreement]:
    modes = modes_of(posterior)
    if len(modes.weights) < 2 or own.points is None or known.points is None:
        return []
    ours, theirs = modes.assign(own.points), modes.assign(known.points)
    return [_mode(ours == mode, theirs == mode, known, len(modes.weights)) for mode in range(len(modes.weights))]


def _mode(ours: np.ndarray, theirs: np.ndarray, known: Draws, num_modes: int) -> ModeAgreement:
    """Shares are binomial; the counts are pooled for the floor, which allows for their being whole numbers."""
    ess = effective_size(theirs.astype(np.float64), known.num_chains)
    own, reference = float(ours.mean()), float(theirs.mean())
    pooled = (ours.sum() + reference * ess + 1) / (len(ours) + ess + 2)
    std_err = math.sqrt(pooled * (1 - pooled) * (1 / len(ours) + 1 / ess))
    floor = _normal_limit(_RISK / num_modes) * std_err + 1 / min(len(ours), ess)
    return ModeAgreement(own, reference, Difference(Estimate(own - reference, std_err, len(ours)), floor))


def _kurtosis(values: np.ndarray) -> float:
    centred = values - values.mean()
    return float(np.mean(centred**4) / np.mean(centred**2) ** 2)


def _normal_limit(risk: float) -> float:
    """What a standard normal exceeds in size with probability `risk`."""
    return float(-ndtri(risk / 2))
