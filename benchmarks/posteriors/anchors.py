"""The anchors of `targets.py`, whose log Z is known. It imports relbo, so it is itself imported where it is used."""

from typing import Any

import numpy as np

from posteriors.base import Model


def _of_targets(function_name: str):
    def log_density(z, *data):
        import targets

        return getattr(targets, function_name)(z, *data)

    return log_density


def normals_of(name: str) -> dict[str, Any]:
    """Weights, means and covariances of a mixture of normals of `targets.py`."""
    import targets

    return getattr(targets, name)().extras


def _normals_data(name: str) -> tuple[np.ndarray, ...]:
    facts = normals_of(name)
    whiten = np.linalg.inv(np.linalg.cholesky(facts["covariances"]))
    return np.log(facts["weights"]), facts["means"], whiten


def _two_modes_data():
    return _normals_data("two_modes")


def _ten_normals_data():
    return _normals_data("ten_normals")


def _side(draws: np.ndarray) -> np.ndarray:
    return (draws[:, 0] > 0).astype(int)


def _nearest_normal(draws: np.ndarray) -> np.ndarray:
    """The normal of greatest density at each draw."""
    _, means, whiten = _ten_normals_data()
    scores = [
        np.log(np.diag(factor)).sum() - 0.5 * np.sum(((draws - mean) @ factor.T) ** 2, axis=1)
        for mean, factor in zip(means, whiten, strict=True)
    ]
    return np.argmax(scores, axis=0)


def _breast_cancer_data():
    import targets

    facts = targets.breast_cancer().extras
    return facts["features"], facts["signs"]


def _german_credit_data():
    import targets

    facts = targets.german_credit().extras
    return facts["features"], facts["signs"]


_normals = _of_targets("normals_log_density")
_logistic = _of_targets("logistic_log_density")

ANCHORS = [
    Model(
        "two_modes", "Two modes: 0.4 N(-1, .5²) + 0.6 N(1, .5²)", 1, _normals, _two_modes_data,
        num_modes=2, mode_of=_side,
    ),
    Model("banana", "Banana: x ~ N(0, 10²), y | x ~ N(3 - 0.03 x², 1)", 2, _of_targets("banana_log_density")),
    Model("funnel", "Funnel: v ~ N(0, 3²), nine x | v ~ N(0, e^v)", 10, _of_targets("funnel_log_density")),
    Model(
        "ten_normals", "Ten far normals with full covariances", 20, _normals, _ten_normals_data,
        num_modes=10, mode_of=_nearest_normal,
    ),
    Model("breast_cancer", "Logistic regression, breast cancer, 569 rows", 31, _logistic, _breast_cancer_data),
    Model("german_credit", "Logistic regression, German credit, 1,000 rows", 25, _logistic, _german_credit_data),
]  # fmt: skip
