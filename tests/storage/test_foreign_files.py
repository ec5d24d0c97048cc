"""Files with a right checksum that hold what no fit writes, or that another version wrote."""

import numpy as np
import pytest

import relbo
from lean_fits import SETTINGS, interrupting, lean_target, same, undisturbed
from relbo.storage.container import pack, unpack, write_atomically
from relbo.storage.files import to_bytes


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
@pytest.mark.parametrize("name", ["state/params/0", "map/0"])
def test_parameters_that_are_no_numbers_are_refused(name, wrong, tmp_path):
    """Every draw would be NaN, without a word."""
    header, arrays = unpack(b"".join(to_bytes(undisturbed())), "")
    arrays[name] = arrays[name].copy()
    arrays[name].flat[0] = wrong
    write_atomically(tmp_path / "fit.relbo", pack(header, arrays))
    with pytest.raises(ValueError, match=r"cannot be read as a posterior .*are not finite"):
        relbo.load(tmp_path / "fit.relbo")


def test_the_slots_without_a_component_may_hold_anything(tmp_path):
    header, arrays = unpack(b"".join(to_bytes(undisturbed())), "")
    empty = arrays["state/log_weights"] == -np.inf
    assert empty.any()
    arrays["state/params/0"] = np.where(empty[:, None], np.nan, arrays["state/params/0"]).astype(np.float32)
    write_atomically(tmp_path / "fit.relbo", pack(header, arrays))
    assert np.isfinite(relbo.load(tmp_path / "fit.relbo").sample(100)).all()


@pytest.fixture
def half(tmp_path, monkeypatch):
    """The checkpoint of a fit that was interrupted, said to be of other versions."""
    path = tmp_path / "fit.ckpt"
    with monkeypatch.context() as patch, pytest.warns(UserWarning, match="Interrupted"):
        patch.setattr(relbo.Booster, "step", interrupting(relbo.Booster.step, 3))
        relbo.fit(lean_target(), checkpoint=path, **SETTINGS)
    header, arrays = unpack(path.read_bytes(), "")
    write_atomically(path, pack({**header, "relbo": "0.0.7", "jax": "0.3.1"}, arrays))
    return path


def test_another_version_is_said_where_a_fit_goes_on(half, recwarn):
    with pytest.warns(UserWarning, match="written by relbo 0.0.7 with JAX 0.3.1, where this is relbo .* same bits"):
        assert same(relbo.fit(lean_target(), checkpoint=half, **SETTINGS), undisturbed())
    recwarn.clear()
    relbo.fit(lean_target(), checkpoint=half, **SETTINGS)  # of this version by now
    assert not recwarn


def test_a_file_that_cannot_be_read_says_who_wrote_it(tmp_path):
    header, arrays = unpack(b"".join(to_bytes(undisturbed())), "")
    header |= {"relbo": "7.0", "family": {"is": "LaterFamily"}}
    write_atomically(tmp_path / "fit.relbo", pack(header, arrays))
    with pytest.raises(ValueError, match=r"does not know: it says relbo 7\.0 with JAX"):
        relbo.load(tmp_path / "fit.relbo")
