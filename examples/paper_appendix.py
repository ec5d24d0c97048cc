"""The program of the paper's appendix in today's API: Bayesian logistic regression, Laplace components, a loop by hand.

    python examples/paper_appendix.py [--quick]

The paper (Locatello et al. 2018) drives the boosting loop itself: fit a component to the residual ELBO, choose its
weight, add it, look at the duality gap, go on. `relbo.fit` does the same and more; this is what happens inside. Needs
the extra demo, for the data.

How it departs from the paper's program, which needs Edward on TensorFlow 1.4:

- data: scikit-learn's breast cancer with an intercept, for ChemReact without one;
- coordinates: relbo whitens before it boosts, where the paper climbs in the model's own;
- oracle: several starts where the residual is large, 16 draws a step and a learning rate that falls along a cosine,
  where the paper has one random start, one draw and 0.1 times 0.9 to the number of hundreds of steps;
- density: that of the mixture, where the authors' code scores a product of one-dimensional mixtures;
- weight: line search on draws made once, where theirs takes 50 gradient steps;
- end: when the duality gap is small, which their code measures and does not use.

With `precondition="none"` and `oracle=relbo.paper("line_search")["oracle"]` the second and the third are the paper's.
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split

import relbo


def log_density(w, features, labels):
    """Weights w ~ N(0, 1); labels are -1 or 1."""
    return -0.5 * jnp.sum(w**2) - jnp.sum(jax.nn.softplus(-labels * (features @ w)))


def load():
    features, labels = load_breast_cancer(return_X_y=True)
    features = np.c_[np.ones(len(features)), (features - features.mean(0)) / features.std(0)]
    return train_test_split(features, 2.0 * labels - 1, test_size=0.3, random_state=0)


def main(quick: bool = False) -> list[float]:
    train, test, train_labels, test_labels = load()
    target = relbo.from_log_density(log_density, jnp.zeros(train.shape[1]), args=(train, train_labels))
    booster = relbo.make_booster(
        target,
        family="mean_field_laplace",
        objective=relbo.RELBO("1/sqrt(t+1)"),
        oracle="gradient",
        step="line_search",
        refine=False,
    )

    key = jax.random.key(0)
    state, record = booster.init(jax.random.fold_in(key, 0))
    elbos = [record.elbo.value]
    for iteration in range(1, 2 if quick else 10):
        state, record = booster.step(jax.random.fold_in(key, iteration), state)
        elbos.append(record.elbo.value)
        draws = jax.vmap(state.target.unwhiten)(state.mixture.sample(jax.random.key(1), 500))
        scores = np.asarray(jax.nn.sigmoid(draws @ test.T)).mean(0)
        auroc = roc_auc_score(test_labels, scores)
        print(
            f"iteration {iteration}: {record.num_components} components, ELBO {record.elbo}, gap {record.gap}, "
            f"step {record.step_size:.3f}, test AUROC {auroc:.4f}",
            flush=True,
        )
        if record.gap.value < 0.01:
            print("The duality gap is small: done.")
            break
    return elbos


if __name__ == "__main__":
    main(quick="--quick" in sys.argv)
