"""Saved posteriors: the same after loading, without the model; and files that cannot be trusted."""

import hashlib
import json
import struct

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import relbo
from helpers import quick_settings
from relbo.posterior.posterior import Posterior
from relbo.storage.container import FORMAT, pack, unpack
from relbo.storage.files import to_bytes
from relbo.storage.reading import read
from relbo.storage.targets import decode_target, encode_target
from relbo.targets.stored import Labels, StoredTarget

FAST = {"stop": (), "max_components": 2}
BARE = {"max_components": 1, "precondition": "none", "refine": False}
ONE = {**quick_settings(), "max_components": 1}


def log_density(params):
    x, scale = params["x"], params["scale"]
    return jnp.sum(jnp.log1p(x**2) - 0.5 * x**2) - scale


@pytest.fixture(scope="module")
def target():
    return relbo.from_log_density(
        log_density, {"x": jnp.zeros(2), "scale": jnp.asarray(1.0)}, supports={"scale": "positive"}
    )


@pytest.fixture(scope="module")
def posterior(target):
    return relbo.fit(target, seed=1, **FAST)


@pytest.fixture(scope="module")
def file(posterior, tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "fit.relbo"
    relbo.save(posterior, path)
    return path


def assert_same(a, b):
    for one, other in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_array_equal(one, other)


def parts_of(posterior: Posterior):
    state = posterior.state
    kept = (state.mixture, state.modes, state.memory, state.elbo, state.iteration, state.explore)
    return posterior.mixture, posterior.whitened.params, posterior.elbo, kept


def test_a_loaded_posterior_is_the_same_without_its_model(posterior, file):
    loaded = relbo.load(file)
    assert_same(loaded.sample(50, seed=3), posterior.sample(50, seed=3))
    z = posterior.sample_unconstrained(20, seed=4)
    assert_same(loaded.log_prob(z), posterior.log_prob(z))
    assert_same(parts_of(loaded), parts_of(posterior))
    assert (loaded.stop_reason, str(loaded)) == (posterior.stop_reason, str(posterior))
    assert [str(record) for record in loaded.trace] == [str(record) for record in posterior.trace]


def test_a_loaded_posterior_goes_on_as_the_original_would(posterior, target, file):
    from_file = relbo.fit(target, start=relbo.load(file), stop=(), max_components=4)
    from_memory = relbo.fit(target, start=posterior, stop=(), max_components=4)
    assert_same(from_file.mixture, from_memory.mixture)
    attached = relbo.load(file, target=target)
    assert attached.target is target
    assert float(relbo.diagnose(attached, 1000).elbo.value) == float(relbo.diagnose(posterior, 1000).elbo.value)


def test_to_arviz_without_the_model(posterior, file):
    there, here = relbo.to_arviz(relbo.load(file)), relbo.to_arviz(posterior)
    assert_same({**there.posterior.data_vars}, {**here.posterior.data_vars})
    np.testing.assert_allclose(there.sample_stats["lp"], here.sample_stats["lp"], rtol=1e-5)


def test_diagnose_without_the_model(posterior, file, tmp_path):
    seen = relbo.diagnose(relbo.load(file))
    truth = relbo.diagnose(posterior)
    error = np.hypot(seen.elbo.std_err, truth.elbo.std_err)
    assert abs(seen.elbo.value - truth.elbo.value) < 4 * error
    assert seen.num_draws == 2000 and seen.modes == truth.modes and str(seen.elbo) in str(seen)
    relbo.save(posterior, tmp_path / "bare.relbo", num_draws=0)
    with pytest.raises(ValueError, match="holds no draws to judge it by"):
        relbo.diagnose(relbo.load(tmp_path / "bare.relbo"))


def test_more_draws_than_stored_go_to_arviz_without_log_p(posterior, file):
    there = relbo.to_arviz(relbo.load(file), num_draws=3000)
    assert there.posterior["scale"].size == 3000 and list(there.sample_stats.data_vars) == ["log_q"]


def test_what_needs_the_model_says_so(file):
    loaded = relbo.load(file)
    for ask in (loaded.target.log_density, lambda z: relbo.predict(loaded), lambda z: relbo.to_arviz(loaded, prior=5)):
        with pytest.raises(ValueError, match=r"relbo.load\(path, target=target\)"):
            ask(jnp.zeros(3))


def test_another_target_is_refused(file):
    other = relbo.from_log_density(lambda p: -jnp.sum(p["y"] ** 2), {"y": jnp.zeros(3)})
    with pytest.raises(ValueError, match="'scale' where the target has 'y\\[0\\]'"):
        relbo.load(file, target=other)
    with pytest.raises(ValueError, match="3 dimensions"):
        relbo.load(file, target=relbo.from_log_density(lambda x: -jnp.sum(x**2), jnp.zeros(2)))


def test_numpyro_models_with_and_without_computed_quantities(tmp_path):
    def plain(y):
        mu = numpyro.sample("mu", dist.Normal(0, 1))
        sigma = numpyro.sample("sigma", dist.HalfNormal(1))
        share = numpyro.sample("share", dist.Dirichlet(jnp.ones(3)))
        width = numpyro.sample("a_width", dist.Uniform(0, 2).expand([2]).to_event(1))
        numpyro.sample("y", dist.Normal(mu + share[0] + width.sum(), sigma), obs=y)

    def computed(y):
        plain(y)
        numpyro.deterministic("twice", 2 * jnp.ones(2))

    y = jnp.asarray([0.3, 1.1, 0.7])
    for model, described in ((plain, True), (computed, False)):
        posterior = relbo.fit(relbo.from_numpyro(model, y), **ONE)
        relbo.save(posterior, tmp_path / "fit.relbo", num_draws=100)
        loaded = relbo.load(tmp_path / "fit.relbo")
        assert (loaded.target.layout is not None) == described
        assert_same(loaded.sample(100), posterior.sample(100))
        there, here = relbo.to_arviz(loaded, num_draws=100), relbo.to_arviz(posterior, num_draws=100)
        assert set(there.groups()) == set(here.groups())
        np.testing.assert_array_equal(there.observed_data["y"], y)
        np.testing.assert_allclose(there.log_likelihood["y"], here.log_likelihood["y"], rtol=1e-4, atol=1e-5)
        assert there.posterior["a_width"].dims == here.posterior["a_width"].dims
        if described:
            assert loaded.sample(500)["share"].shape == (500, 3)
        else:
            with pytest.raises(ValueError, match="the file holds 100"):
                loaded.sample(500)
    relbo.save(posterior, tmp_path / "bare.relbo", data=False)
    relbo.save(loaded, tmp_path / "again.relbo", num_draws=50, data=False)  # a loaded one can be made bare, too
    for name, num in (("bare", 2000), ("again", 50)):
        groups = relbo.to_arviz(relbo.load(tmp_path / f"{name}.relbo"), num_draws=num).groups()
        assert not {"observed_data", "log_likelihood"} & set(groups)


@pytest.mark.parametrize("example", [0.0, (0.0, {"b": jnp.zeros(2), "a": [1.0]})])
def test_the_structure_of_parameters_survives(example, tmp_path):
    target = relbo.from_log_density(lambda p: -sum(jnp.sum(x**2) for x in jax.tree.leaves(p)), example)
    posterior = relbo.fit(target, **ONE)
    relbo.save(posterior, tmp_path / "fit.relbo", num_draws=0)
    here, there = posterior.sample(3), relbo.load(tmp_path / "fit.relbo").sample(3)
    assert jax.tree.structure(here) == jax.tree.structure(there)
    assert_same(here, there)


@pytest.mark.parametrize(
    "given",
    [{"family": "laplace"}, {"family": "low_rank_student_t"}, {**relbo.paper("fixed"), "max_components": 2},
     {"family": relbo.families.from_numpyro(dist.Logistic)}, {"step": "adaptive"}],
)  # fmt: skip
@pytest.mark.slow
def test_every_setting_survives(given, tmp_path, target):
    posterior = relbo.fit(target, **{**BARE, **given})
    relbo.save(posterior, tmp_path / "fit.relbo", num_draws=0)
    loaded = relbo.load(tmp_path / "fit.relbo", target=target)
    assert jax.tree.structure(loaded.booster) == jax.tree.structure(posterior.booster)
    assert_same(loaded.booster, posterior.booster)
    assert_same(parts_of(loaded), parts_of(posterior))


def test_settings_of_ones_own_must_be_given_again(tmp_path, target):
    mine = relbo.FiniteStep(lambda iteration: 0.3)
    posterior = relbo.fit(target, objective=mine, **ONE)
    relbo.save(posterior, tmp_path / "fit.relbo", num_draws=0)
    loaded = relbo.load(tmp_path / "fit.relbo")
    with pytest.raises(ValueError, match="could not hold objective"):
        relbo.fit(target, start=loaded)
    assert relbo.fit(target, start=loaded, objective=mine, **ONE).num_components == 1


class Remembering(relbo.Adaptive):
    """A step rule of one's own, with a memory."""


@pytest.mark.slow
def test_a_step_rule_of_ones_own_keeps_its_memory(tmp_path, target):
    settings = {**ONE, "step": Remembering(), "max_components": 3, "stop": (), "min_improvement": -np.inf}
    posterior = relbo.fit(target, **settings)
    relbo.save(posterior, tmp_path / "fit.relbo", num_draws=0)
    more = {**settings, "max_components": 4}
    again = relbo.fit(target, start=relbo.load(tmp_path / "fit.relbo"), **more)
    assert_same(again.mixture, relbo.fit(target, start=posterior, **more).mixture)


def test_labels_keep_their_kind(tmp_path, target, posterior):
    labels = Labels({}, {"dose": np.array([0.5, 1, 2]), "day": np.array(["2026-01-02"], "M8[ns]"),
                         "who": np.array(["a", "b"])}, {}, {})  # fmt: skip
    stored = StoredTarget(
        3, np.dtype(np.float32), True, True, jnp.zeros((1, 3)), "x", ("a", "b", "c"), None, None, labels
    )
    header, arrays = encode_target(eqx.tree_at(lambda p: p.booster.target, posterior, stored), None, True)
    for name, values in decode_target(json.loads(json.dumps(header)), arrays).coords().items():
        np.testing.assert_array_equal(values, labels.coords[name])
        assert values.dtype == labels.coords[name].dtype


def test_old_files_lack_new_fields(small, tmp_path):
    """A setting that did not exist yet takes its default; one that is unknown must be given again."""
    header, arrays = unpack(small, "")
    del header["settings"]["oracle"]["num_restarts"]
    header["settings"]["objective"]["later"] = 1
    (tmp_path / "old.relbo").write_bytes(b"".join(pack(header, arrays)))
    loaded = relbo.load(tmp_path / "old.relbo")
    assert loaded.booster.oracle.num_restarts == 6 and loaded.booster.missing == ("objective",)


def test_a_family_of_ones_own_is_refused(target, tmp_path):
    class Mine(relbo.families.LocationScale):
        pass

    posterior = relbo.fit(target, family=Mine(), **ONE)
    with pytest.raises(ValueError, match="cannot hold the family Mine"):
        relbo.save(posterior, tmp_path / "fit.relbo")
    assert not list(tmp_path.iterdir())


# Files that cannot be trusted.


def test_other_and_newer_and_broken_files(file, tmp_path):
    whole = file.read_bytes()
    newer = whole[:8] + struct.pack("<I", FORMAT + 1) + whole[12:]
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 1
    cases = [
        (b"", "is empty"), (b"PK\x03\x04 an npz", "is not a file of relbo"), (newer, "Upgrade relbo"),
        (whole[:-1], "is cut short"), (whole[:10], "is cut short"), (whole + b"x", "is damaged"),
        (bytes(flipped), "checksum does not match"),
    ]  # fmt: skip
    for data, message in cases:
        (tmp_path / "bad.relbo").write_bytes(data)
        with pytest.raises(ValueError, match=message):
            relbo.load(tmp_path / "bad.relbo")
    with pytest.raises(FileNotFoundError):
        relbo.load(tmp_path / "none.relbo")


@pytest.fixture(scope="module")
def small(posterior):
    return b"".join(to_bytes(posterior, num_draws=0))


EDITS = st.lists(
    st.tuples(
        st.sampled_from(["set", "cut", "insert", "copy"]), st.floats(0, 1), st.floats(0, 1), st.binary(max_size=9)
    ),
    min_size=1,
    max_size=4,
)


def edit(data: bytes, edits) -> bytes:
    for kind, begin, end, new in edits:
        i, j = sorted((int(begin * len(data)), int(end * len(data))))
        if kind == "set":
            data = data[:i] + new + data[i + len(new) :]
        elif kind == "cut":
            data = data[:i] + data[j:]
        elif kind == "insert":
            data = data[:i] + new + data[i:]
        else:
            data = data[:j] + data[i:j] + data[j:]
    return data


def files(num: int):
    """Settings of hypothesis for so many files, the same ones every time."""
    return settings(
        max_examples=num, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
    )


@pytest.mark.parametrize("num", [600, pytest.param(9000, marks=pytest.mark.slow)])
def test_mutated_files_are_refused_or_the_same(num, small):
    @files(num)
    @given(edits=EDITS)
    def check(edits):
        mutated = edit(small, edits)
        try:
            header, arrays = unpack(mutated, "mutated")
        except ValueError:
            return
        assert mutated == small
        assert (header, arrays.keys()) == (unpack(small, "")[0], unpack(small, "")[1].keys())

    check()


@pytest.mark.parametrize("num", [100, pytest.param(1000, marks=pytest.mark.slow)])
def test_forged_files_are_refused_or_a_posterior(num, small, tmp_path):
    """A valid checksum over a header with anything anywhere: a ValueError in a sentence, or a posterior."""
    path = tmp_path / "forged.relbo"

    @files(num)
    @given(data=st.data())
    def check(data):
        header, arrays = unpack(small, "")
        for _ in range(data.draw(st.integers(1, 3))):
            forge(data, header, arrays)
        path.write_bytes(b"".join(pack(header, arrays)))
        try:
            found = read(path).posterior
        except ValueError as error:
            assert "forged.relbo" in str(error)
        else:
            assert isinstance(found, Posterior) and found.num_components >= 1

    check()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["", "nan", "float32", "Normal", "NaturalAscent", "os.system", "__class__", "positive", "dict"]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(["is", "numpyro", "function", "tuple", "number", "x"]), inner, max_size=3),
    max_leaves=4,
)  # fmt: skip


def forge(data, header, arrays) -> None:
    """Replace one thing somewhere in the header, or one array."""
    if data.draw(st.integers(0, 4)) == 0:
        name = data.draw(st.sampled_from(sorted(arrays)))
        shape = data.draw(st.sampled_from([arrays[name].shape, (), (0,), (3, 1), arrays[name].shape[::-1]]))
        dtype = data.draw(st.sampled_from([arrays[name].dtype, np.dtype(np.int8), np.dtype(np.float64)]))
        fill = data.draw(st.sampled_from([0, 1, 7]))
        arrays[name] = np.full(shape, fill, dtype)
        return
    node, path = header, []
    while True:
        keys = sorted(node) if isinstance(node, dict) else list(range(len(node)))
        key = data.draw(st.sampled_from(keys))
        path.append(key)
        deeper = node[key]
        if not isinstance(deeper, dict | list) or not deeper or data.draw(st.integers(0, 3)) == 0:
            break
        node = deeper
    if isinstance(node, dict) and data.draw(st.integers(0, 5)) == 0:
        del node[key]
    else:
        node[key] = data.draw(JSON)


def test_nothing_in_a_file_is_looked_up_beyond_the_lists(small, tmp_path):
    for evil in ({"is": "Popen"}, {"numpyro": "os"}, {"function": "eval"}, {"number": 1.0, "dtype": "U400000000"}):
        for place in ("settings", "family"):
            header, arrays = unpack(small, "")
            header[place] = evil if place == "family" else header["settings"] | {"oracle": evil}
            (tmp_path / "evil.relbo").write_bytes(b"".join(pack(header, arrays)))
            if place == "family":
                with pytest.raises(ValueError, match="cannot be read as a posterior"):
                    relbo.load(tmp_path / "evil.relbo")
            else:
                assert relbo.load(tmp_path / "evil.relbo").booster.missing == ("oracle",)


def test_a_small_file_cannot_ask_for_much_memory(small, tmp_path):
    header, arrays = unpack(small, "")
    many = b"".join(pack(header, arrays | {"big": np.zeros(10**5)}))
    length = struct.unpack_from("<Q", many, 20)[0]
    table = json.loads(many[28 : 28 + length])
    table["arrays"] |= {f"copy{i}": table["arrays"]["big"] for i in range(100)}
    text = json.dumps(table).encode()
    text += b" " * (-(28 + len(text)) % 64)
    body = many[28 + length : -32]
    fixed = struct.pack("<8sIQQ", many[:8], FORMAT, 28 + len(text) + len(body) + 32, len(text))
    forged = fixed + text + body
    (tmp_path / "big.relbo").write_bytes(forged + hashlib.sha256(forged).digest())
    with pytest.raises(ValueError, match="arrays overlap"):
        relbo.load(tmp_path / "big.relbo")


@pytest.mark.parametrize("about", [{}, 5, {"first_new": "x"}, {"seed": 0, "first_new": 0, "best": None}])
def test_forged_checkpoints(about, small, tmp_path, target):
    header, arrays = unpack(small, "")
    header["fit"] = about
    (tmp_path / "fit.ckpt").write_bytes(b"".join(pack(header, arrays)))
    with pytest.raises(ValueError, match="cannot be read as a posterior"):
        relbo.fit(target, checkpoint=tmp_path / "fit.ckpt", seed=1, **FAST)


def test_the_header_is_plain_json(file):
    whole = file.read_bytes()
    length = struct.unpack_from("<Q", whole, 20)[0]
    header = json.loads(whole[28 : 28 + length])
    assert header["target"]["layout"]["leaves"][0]["support"] == "positive"
    assert header["arrays"]["state/log_weights"]["dtype"] == "float32"
