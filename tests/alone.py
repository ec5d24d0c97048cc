"""What has to work with the wheel alone, no extras installed: run by `make wheel-alone`, outside of pytest."""

import importlib.util

import jax.numpy as jnp

import relbo

EXTRAS = ("numpyro", "pymc", "httpstan", "arviz", "matplotlib", "sklearn")


def main() -> None:
    present = [name for name in EXTRAS if importlib.util.find_spec(name)]
    assert not present, f"these extras came along: {present}"
    target = relbo.from_log_density(lambda z: -0.5 * jnp.sum((z - 1.0) ** 2), jnp.zeros(2))
    posterior = relbo.fit(target, seed=0)
    relbo.save(posterior, "alone.relbo")
    assert relbo.load("alone.relbo").sample(10).shape == (10, 2)
    for call in (lambda: relbo.from_numpyro(lambda: None), lambda: relbo.to_arviz(posterior)):
        try:
            call()
        except ImportError as error:
            assert "pip install" in str(error), error
        else:
            raise AssertionError("an extra that is not there was not missed")
    print(f"relbo {relbo.__version__} works alone: {relbo.diagnose(posterior).verdict}")


if __name__ == "__main__":
    main()
