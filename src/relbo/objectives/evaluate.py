r"""Monte Carlo estimates of what a mixture is worth, each with its standard error.

Draws are stratified (the same number from every component), and every estimate is a smooth function of stratum means,
so its error follows from the variance of its influence function in each stratum.

Where $p$ is zero on part of the space, the estimates are of the mixture restricted to $p > 0$, which is what rejecting
such draws samples: with $c = q(p > 0)$, $\mathrm{ELBO} = E_q[1_{p>0} (\log p - \log q)] / c + \log c$. A draw with a
NaN log density is skipped and counted; it is never read as zero density.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key, PyTree

from relbo.estimate import Estimate
from relbo.mixture import Mixture, map_chunks
from relbo.targets import AbstractTarget


class Evaluation(eqx.Module):
    """An estimate, with the numbers of draws whose log density was NaN and of draws outside the support."""

    estimate: Estimate
    num_nan: Int[Array, ""]
    num_zero: Int[Array, ""]


class Influence(eqx.Module):
    """Weighted stratum means of `per_draw` estimate `value`; NaN draws are masked out of both."""

    value: Float[Array, ""]
    mean: Float[Array, ""]
    """Without log c: the mean ratio of the restricted mixture."""
    per_draw: Float[Array, "stratum num"]
    mean_per_draw: Float[Array, "stratum num"]
    valid: Float[Array, "stratum num"]
    num_nan: Int[Array, ""]
    num_zero: Int[Array, ""]

    def std_err(self) -> Float[Array, ""]:
        return _stratified_std_err(self.per_draw, self.valid)

    def std_err_of_mean(self) -> Float[Array, ""]:
        return _stratified_std_err(self.mean_per_draw, self.valid)

    def evaluation(self, num_draws: int) -> Evaluation:
        return Evaluation(Estimate(self.value, self.std_err(), num_draws), self.num_nan, self.num_zero)


def log_ratio(target: AbstractTarget, mixture: Mixture, point: Float[Array, " dim"]) -> Float[Array, ""]:
    """log p - log q at one point; +inf is as broken as NaN, and becomes NaN."""
    return log_density(target, point) - mixture.log_prob(point)


def log_density(target, point):
    """log p at one point, +inf being as broken as NaN."""
    log_p = target.log_density(point)
    return jnp.where(log_p == jnp.inf, jnp.nan, log_p)


def elbo(key: Key[Array, ""], target: AbstractTarget, mixture: Mixture, num_draws: int) -> Evaluation:
    """ELBO(q) = E_q[log p - log q] from `num_draws` draws of every component."""
    points = _stratified(key, mixture, num_draws)
    (ratios,) = _log_ratios(target, (mixture,), points)
    return _elbo_influence(mixture, ratios).evaluation(mixture.capacity * num_draws)


def duality_gap(
    key: Key[Array, ""], target: AbstractTarget, mixture: Mixture, params: PyTree, num_draws: int
) -> Evaluation:
    r"""$E_s[\log p - \log q] - E_q[\log p - \log q]$ for one component $s$, on fresh draws.

    With $s$ the exact oracle's answer over the bounded family this bounds $\mathrm{KL}(q\|p) - \min_{q'}
    \mathrm{KL}(q'\|p)$ from above. With any other $s$ it is smaller: an estimate, not a certificate.
    """
    mixture_key, component_key = jax.random.split(key)
    num = mixture.capacity * num_draws  # as many draws for s as for the whole mixture
    component_points = mixture.family.sample(component_key, params, num)
    points = jnp.concatenate([_stratified(mixture_key, mixture, num_draws), component_points])
    (ratios,) = _log_ratios(target, (mixture,), points)
    return _gap_evaluation(_elbo_influence(mixture, ratios[:num]), ratios[num:])


class Comparison(eqx.Module):
    """A mixture before and after an iteration, measured on one set of fresh draws."""

    gap: Evaluation
    """Of the old mixture, towards the proposal."""
    improvement: Estimate
    """ELBO(new) - ELBO(old), on common random numbers slot by slot."""
    elbo: Evaluation
    """Of the new mixture."""
    num_nan_before: Int[Array, ""]
    """Draws of the old mixture whose log density was NaN."""


def compare(
    key: Key[Array, ""], target: AbstractTarget, old: Mixture, new: Mixture, params: PyTree, num_draws: int
) -> Comparison:
    """All that an iteration measures. `old` and `new` have the same capacity; `params` is the proposal.

    The proposal draws half as often as all slots together, most of which are empty most of the time.
    """
    num = old.capacity * num_draws
    points = _common_draws(key, old, new, params, num_draws)
    used = jnp.concatenate([jnp.repeat(old.active, num_draws), jnp.repeat(new.active, num_draws)])
    used = jnp.concatenate([used, jnp.ones(points.shape[0] - 2 * num, bool)])
    old_ratios, new_ratios = _log_ratios(target, (old, new), points, used)
    before, after = _elbo_influence(old, old_ratios[:num]), _elbo_influence(new, new_ratios[num : 2 * num])
    std_err = _stratified_std_err(after.per_draw - before.per_draw, after.valid * before.valid)
    improvement = Estimate(after.value - before.value, std_err, num)
    gap = _gap_evaluation(before, old_ratios[2 * num :])
    return Comparison(gap, improvement, after.evaluation(num), before.num_nan)


def _common_draws(key, old: Mixture, new: Mixture, params: PyTree, num_draws: int) -> Float[Array, "num dim"]:
    """Draws of every slot of `old`, of every slot of `new` by the same keys, half as many of the component `params`.

    One vmap draws them all, because every call of a random generator costs its time to compile.
    """
    capacity, extra = old.capacity, max(1, old.capacity // 2)
    keys = jax.random.split(key, capacity + extra)
    repeated = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (extra, *jnp.shape(leaf))), params)
    both = jax.tree.map(lambda *leaves: jnp.stack([jnp.concatenate([leaf, leaves[2]]) for leaf in leaves[:2]], 1),
                        old.params, new.params, repeated)  # fmt: skip
    draw = jax.vmap(lambda k, pair: jax.vmap(lambda one: old.family.sample(k, one, num_draws))(pair))
    draws = draw(keys, both)
    parts = (draws[:capacity, 0], draws[:capacity, 1], draws[capacity:, 0])
    return jnp.concatenate(parts).reshape((2 * capacity + extra) * num_draws, -1)


def _stratified(key, mixture, num_draws):
    return mixture.sample_stratified(key, num_draws).reshape(mixture.capacity * num_draws, -1)


def _log_ratios(
    target, mixtures: tuple[Mixture, ...], points: Float[Array, "num dim"], used=None
) -> list[Float[Array, " num"]]:
    """log p - log q at all points, for one or two mixtures, in one loop (see `map_chunks` for why only one)."""

    def at(point):
        log_p = log_density(target, point)
        return [log_p - mixture.log_prob(point) for mixture in mixtures]

    return map_chunks(at, points, target.points_at_once, used)


def _elbo_influence(mixture, ratios) -> Influence:
    return _truncated_mean(ratios.reshape(mixture.capacity, -1), jnp.exp(mixture.log_weights))


def _gap_evaluation(inside: Influence, component_ratios: Float[Array, " num"]) -> Evaluation:
    # Of restricted densities: log q - log c is the restricted mixture in both terms, and log c cancels.
    outside = _truncated_mean(component_ratios[None], jnp.ones(1, component_ratios.dtype))
    value = outside.mean - inside.mean
    std_err = jnp.sqrt(outside.std_err_of_mean() ** 2 + inside.std_err_of_mean() ** 2)
    num_nan, num_zero = inside.num_nan + outside.num_nan, inside.num_zero + outside.num_zero
    num_draws = inside.valid.size + component_ratios.shape[0]
    return Evaluation(Estimate(value, std_err, num_draws), num_nan, num_zero)


def _truncated_mean(ratios: Float[Array, "stratum num"], weights: Float[Array, " stratum"]) -> Influence:
    used = (weights > 0)[:, None]
    broken = jnp.isnan(ratios) & used
    valid = (~broken).astype(ratios.dtype)  # the draws of an empty slot are zeros without error
    inside = jnp.isfinite(ratios) & used
    share = weights[:, None] / jnp.where(used, valid.sum(1, keepdims=True), 1.0)  # of one draw; NaN draws leave inf
    total = jnp.sum(jnp.where(inside, share * jnp.where(inside, ratios, 0.0), 0.0))
    mass = jnp.sum(jnp.where(inside, share, 0.0))
    mean = jnp.where(mass > 0, total / mass, 0.0)  # all outside the support: log c is -inf, not NaN
    mean_per_draw = weights[:, None] * jnp.where(inside, (jnp.where(inside, ratios, 0.0) - mean) / mass, 0.0)
    per_draw = mean_per_draw + weights[:, None] * jnp.where(inside, 1 / mass, 0.0)
    lost = jnp.any(used[:, 0] & (valid.sum(1) == 0))
    value, mean = jnp.where(lost, jnp.nan, mean + jnp.log(mass)), jnp.where(lost, jnp.nan, mean)
    num_zero = jnp.sum(used & ~inside & ~broken)
    return Influence(value, mean, per_draw, mean_per_draw, valid, jnp.sum(broken), num_zero)


def _stratified_std_err(per_draw, valid):
    count = valid.sum(1)
    mean = jnp.sum(per_draw * valid, 1) / jnp.maximum(count, 1)
    squares = jnp.sum(valid * (per_draw - mean[:, None]) ** 2, 1)
    known = jnp.all(per_draw == 0, axis=1)  # an empty slot; elsewhere one draw has no error bar, and 0 / 0 says so
    return jnp.sqrt(jnp.sum(jnp.where(known, 0.0, squares / (count - 1) / count)))
