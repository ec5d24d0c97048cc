"""How a fit ended: programs read the kind, people the sentence."""

import jax.numpy as jnp
import pytest

import relbo
from relbo.boosting.stopping import AbstractStop
from relbo.records.outcome import old_stop


class Content(AbstractStop):
    said: object

    def reason(self, records):
        return self.said


@pytest.mark.parametrize(
    ("said", "kind"), [("it is enough", "converged"), (relbo.Stop("budget", "money ran out", "money"), "budget")]
)
def test_a_rule_of_ones_own_says_how_a_fit_ended(said, kind, tmp_path):
    target = relbo.from_log_density(lambda z: -0.5 * jnp.sum(z**2), jnp.zeros(1))
    posterior = relbo.fit(target, stop=Content(said), progress_bar=False)
    assert posterior.stop.kind == kind and posterior.stop_reason == str(said)
    relbo.save(posterior, tmp_path / "fit.relbo")
    assert relbo.load(tmp_path / "fit.relbo").stop == posterior.stop
    assert relbo.diagnose(posterior, num_draws=500).stopped_early == (kind == "budget")


def test_a_kind_that_does_not_exist():
    """Our own sentence, or that of the type checker, which comes first in these tests."""
    with pytest.raises((ValueError, TypeError), match=r"converged[', ]+stalled[', ]+budget"):
        relbo.Stop("done", "it is done")


@pytest.mark.parametrize(
    ("sentence", "kind", "limit"),
    [
        ("the last 5 iterations did not improve the ELBO (0 +- 0 nats)", "stalled", ""),
        ("the duality gap was below 0.002 nats 2 times in a row", "converged", ""),
        ("the mixture is within about 0.001 nats of the target, and no other mode was found", "converged", ""),
        ("it was interrupted before the first component was fitted", "interrupted", ""),
        ("it failed: ValueError: no", "failed", ""),
        ("20% of the draws had a NaN log density (the limit is 10%): check the model there", "broken", ""),
        ("1 component was reached, the most allowed", "budget", "components"),
        ("106 iterations were done, the most allowed", "budget", "iterations"),
        ("the budget of 60 s was spent", "budget", "seconds"),
        ("the budget of 20,000 evaluations was spent", "budget", "evaluations"),
        ("the ELBO is above 3", "converged", ""),
    ],
)
def test_what_older_files_say(sentence, kind, limit):
    assert old_stop(sentence) == relbo.Stop(kind, sentence, limit)
