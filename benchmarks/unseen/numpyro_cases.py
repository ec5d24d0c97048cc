"""Through the NumPyro door."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.contrib.control_flow import scan
from numpyro.distributions import constraints

import relbo
from unseen.base import Case
from unseen.chains import exact, nuts

# Ordinal regression with ordered cutpoints


def ordinal_data():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(150, 3))
    score = x @ [1.0, -0.5, 0.3] + rng.logistic(size=150)
    return x, np.digitize(score, [-1.5, -0.3, 0.6, 2.0])


def ordinal(x, y):
    beta = numpyro.sample("beta", dist.Normal(0, 2).expand([x.shape[1]]).to_event(1))
    cuts = numpyro.sample("cuts", dist.ImproperUniform(constraints.ordered_vector, (), (4,)))
    numpyro.factor("prior", dist.Normal(0, 3).log_prob(cuts).sum())
    numpyro.sample("y", dist.OrderedLogistic(x @ beta, cuts), obs=y)


# Shares of four kinds in eight groups: simplexes under a Dirichlet law of unknown concentration


def shares_data():
    rng = np.random.default_rng(2)
    theta = rng.dirichlet([4.0, 3.0, 2.0, 1.0], size=8)
    return np.stack([rng.multinomial(25, row) for row in theta])


def shares(counts):
    center = numpyro.sample("center", dist.Dirichlet(jnp.ones(4)))
    strength = numpyro.sample("strength", dist.Gamma(2.0, 0.1))
    with numpyro.plate("group", len(counts)):
        theta = numpyro.sample("theta", dist.Dirichlet(strength * center))
        numpyro.sample("counts", dist.Multinomial(25, theta), obs=counts)


# Robust location: improper priors, and a bounded support


def robust_data():
    return np.random.default_rng(3).standard_t(4, size=40) * 2 + 1


def robust(y):
    center = numpyro.sample("center", dist.ImproperUniform(constraints.real, (), ()))
    scale = numpyro.sample("scale", dist.ImproperUniform(constraints.positive, (), ()))
    df = numpyro.sample("df", dist.Uniform(2, 20))
    numpyro.sample("y", dist.StudentT(df, center, scale), obs=y)


# A regularised horseshoe (Piironen and Vehtari 2017): 44 parameters


def horseshoe_data():
    rng = np.random.default_rng(4)
    x = rng.normal(size=(100, 20))
    return x, x[:, :3] @ [2.0, -1.5, 1.0] + 0.5 + rng.normal(size=100)


def horseshoe(x, y):
    num = x.shape[1]
    intercept = numpyro.sample("intercept", dist.Normal(0, 5))
    noise = numpyro.sample("noise", dist.HalfNormal(2))
    tau = numpyro.sample("tau", dist.HalfCauchy(0.05))
    slab = numpyro.sample("slab", dist.InverseGamma(2, 8))
    local = numpyro.sample("local", dist.HalfCauchy(1).expand([num]).to_event(1))
    raw = numpyro.sample("raw", dist.Normal(0, 1).expand([num]).to_event(1))
    shrunk = jnp.sqrt(slab * local**2 / (slab + tau**2 * local**2))
    beta = numpyro.deterministic("beta", raw * tau * shrunk)
    numpyro.sample("y", dist.Normal(intercept + x @ beta, noise), obs=y)


def horseshoe_view(values):
    logs = {f"log {name}": np.log(values[name]) for name in ("tau", "slab", "local")}
    return {name: values[name] for name in ("intercept", "noise", "beta")} | logs


# Item response: 50 persons, 10 items, 72 parameters


def items_data():
    rng = np.random.default_rng(5)
    ability, hardness, slope = rng.normal(size=50), rng.normal(0, 1, 10), rng.lognormal(0, 0.3, 10)
    chance = 1 / (1 + np.exp(-slope * (ability[:, None] - hardness)))
    return (rng.uniform(size=chance.shape) < chance).astype(np.int32)


def items(right):
    num_persons, num_items = right.shape
    center = numpyro.sample("center", dist.Normal(0, 1))
    spread = numpyro.sample("spread", dist.HalfNormal(1))
    hardness = numpyro.sample("hardness", dist.Normal(center, spread).expand([num_items]).to_event(1))
    slope = numpyro.sample("slope", dist.LogNormal(0, 0.5).expand([num_items]).to_event(1))
    ability = numpyro.sample("ability", dist.Normal(0, 1).expand([num_persons]).to_event(1))
    numpyro.sample("right", dist.Bernoulli(logits=slope * (ability[:, None] - hardness)).to_event(2), obs=right)


# Stochastic volatility, centred, by scan: 64 parameters


def returns_data():
    rng = np.random.default_rng(6)
    h = np.zeros(61)
    for t in range(1, 61):
        h[t] = 0.95 * h[t - 1] + 0.3 * rng.normal()
    return np.exp(h / 2 - 1) * rng.normal(size=61)


def volatility(returns):
    mean = numpyro.sample("mean", dist.Normal(-1, 1))
    persistence = numpyro.sample("persistence", dist.Beta(20, 1.5))
    spread = numpyro.sample("spread", dist.HalfNormal(0.5))

    def step(last, value):
        h = numpyro.sample("h", dist.Normal(mean + persistence * (last - mean), spread))
        numpyro.sample("r", dist.Normal(0, jnp.exp(h / 2)), obs=value)
        return h, h

    scan(step, mean, returns)


# A factor that is zero on half of the line


def truncated_data():
    return np.random.default_rng(7).normal(0.45, 1, size=24)


def truncated(y):
    x = numpyro.sample("x", dist.Normal(0, 1))
    numpyro.factor("above", jnp.where(x > 0.5, 0.0, -jnp.inf))
    numpyro.sample("y", dist.Normal(x, 1), obs=y)


def truncated_moments():
    from scipy.stats import truncnorm

    y = truncated_data()
    precision = 1 + len(y)
    mean, sd = y.sum() / precision, precision**-0.5
    law = truncnorm((0.5 - mean) / sd, np.inf, mean, sd)
    return float(law.mean()), float(law.std())


# Three normals by enumeration: six modes, one for each order of the labels


def clusters_data():
    rng = np.random.default_rng(8)
    return np.concatenate([rng.normal(center, 0.7, size=25) for center in (-3.0, 0.0, 3.0)])


def clusters(y):
    shares = numpyro.sample("shares", dist.Dirichlet(jnp.ones(3)))
    noise = numpyro.sample("noise", dist.HalfNormal(1))
    centers = numpyro.sample("centers", dist.Normal(0, 5).expand([3]).to_event(1))
    with numpyro.plate("points", len(y)):
        label = numpyro.sample("label", dist.Categorical(shares), infer={"enumerate": "parallel"})
        numpyro.sample("y", dist.Normal(centers[label], noise), obs=y)


def sorted_clusters(y):
    """The same posterior with the labels in one order: what NUTS can do."""
    shares = numpyro.sample("shares", dist.Dirichlet(jnp.ones(3)))
    noise = numpyro.sample("noise", dist.HalfNormal(1))
    centers = numpyro.sample("centers", dist.ImproperUniform(constraints.ordered_vector, (), (3,)))
    numpyro.factor("prior", dist.Normal(0, 5).log_prob(centers).sum())
    parts = dist.Normal(centers, noise).log_prob(y[:, None]) + jnp.log(shares)
    numpyro.factor("y", jax.nn.logsumexp(parts, axis=1).sum())


def clusters_reference(view):
    """Every order of the labels has a sixth of the mass: the draws of one order are relabelled at random."""
    caught = {}

    def keep(values):
        order = np.random.default_rng(0).permuted(np.tile(np.arange(3), (len(values["noise"]), 1)), axis=1)
        caught.update({name: np.take_along_axis(values[name], order, axis=1) for name in ("centers", "shares")})
        return view({"noise": values["noise"], **caught})

    return nuts(sorted_clusters, clusters_data())(keep)


# Eight schools, not centred

EFFECTS = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
ERRORS = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])


def schools(errors, effects):
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfCauchy(5))
    with numpyro.plate("school", len(errors)):
        raw = numpyro.sample("raw", dist.Normal(0, 1))
        numpyro.sample("effect", dist.Normal(mu + tau * raw, errors), obs=effects)


def _case(name, model, data, reference=None, **options) -> Case:
    def target():
        return relbo.from_numpyro(model, *data())

    return Case(name, "NumPyro", target, reference or nuts(model, *data()), **options)


CASES = (
    _case("ordinal", ordinal, ordinal_data),
    _case("shares", shares, lambda: (shares_data(),)),
    _case("robust", robust, lambda: (robust_data(),)),
    _case("horseshoe", horseshoe, horseshoe_data, view=horseshoe_view),
    _case("items", items, lambda: (items_data(),)),
    _case("volatility", volatility, lambda: (returns_data(),)),
    _case(
        "truncated",
        truncated,
        lambda: (truncated_data(),),
        exact("a truncated normal law", x=truncated_moments()),
    ),
    _case("clusters", clusters, lambda: (clusters_data(),), clusters_reference),
    _case("schools", schools, lambda: (ERRORS, EFFECTS)),
)
