"""A fit in progress: iterations one after another, stopping, checkpoints; whatever happens, nothing is lost."""

import dataclasses
import logging
import math
import signal
import time
from collections import Counter
from typing import Any

import jax

from relbo.boosting.booster import Booster
from relbo.boosting.state import State
from relbo.boosting.stopping import AbstractStop
from relbo.coordinates.learning import is_bent, worth_learning
from relbo.loop.looking import has_other_mode, resumed, seek
from relbo.loop.words import capital, is_memory, last_line
from relbo.mixture import Mixture, num_active
from relbo.model.door import BudgetSpent, Rough
from relbo.model.whitening import identity_map
from relbo.posterior.posterior import Posterior
from relbo.records.estimate import Estimate
from relbo.records.outcome import INTERRUPTED, Stop, stop_of
from relbo.records.trace import Record
from relbo.runtime.interrupts import Terminated, interruption_in
from relbo.runtime.warn import warn
from relbo.storage.checkpoint import Checkpoint, check_same_fit, fingerprint
from relbo.storage.layouts import decode_estimate, encode_estimate
from relbo.storage.objects import encode_number

MAX_NAN_FRACTION = 0.1
"""A fit stops, with what it has, when a larger share of the draws has a NaN log density."""
_BEHIND = 0.1
"""Nats by which a flow alone may be worse than a fit that has ended: boosting in its coordinates gains as much."""
_POLISH_KEY = 2**31 - 1  # no iteration has these numbers
_MODES_KEY = 2**31 - 2  # nor this one


class Run:
    """One fit in progress: whatever happens, `posterior()` gives what there is."""

    def __init__(self, booster: Booster, rules: list[AbstractStop], seed: int, best_by, file: Checkpoint | None, crew):
        self.booster, self.rules, self.seed, self.best_by = booster, rules, seed, best_by
        self.file, self.crew = file, crew
        self.most = int(min(rule.most_components for rule in rules))
        self.budgets = [rule for rule in rules if type(rule).exceeded is not AbstractStop.exceeded]
        self.key = jax.random.key(seed)
        self.state: State | None = None
        self.records: list[Record] = []
        self.first_new = 0
        """The stopping rules read the trace from here on."""
        self.num_old = 0
        """So many records were made before this call."""
        self.may_learn = False
        """Whether coordinates may be learned: where nobody said how long to go on."""
        self.show: Any = id  # every iterate, to whoever watches
        self.stop = INTERRUPTED
        self.watched, self.begun, self.num_now = -1, 0.0, 0
        """Of the iteration that is going on: how many went before, when it began, its evaluations and those before."""
        self.is_continued, self.is_taken_up = False, False
        """Whether it goes on from a posterior that was finished before, or from a checkpoint."""
        self.rough: Rough | None = None
        """What the search for a map had come to, before there is a state."""
        self.spent: Counter = Counter()
        """Evaluations since the last record, for the next one."""
        self.final: State | None = None
        self.best: tuple[float, State] | None = None
        self.facts: dict[str, Any] = {}

    @property
    def current(self) -> State:
        if self.state is None:
            raise RuntimeError("The fit has not begun.")
        return self.state

    def begin(self, start: Posterior | None) -> None:
        """Take up what there is: the checkpoint, or else the posterior to start from."""
        if start is not None:
            self._resume(start)
            self.first_new, self.is_continued = len(self.records) - 1, True
            if not self.booster.step_rule.monotone:  # what there was competes with what will be
                self.best = (self._value(start), _showing(self.current, start.mixture, start.elbo))
        if self.file is None:
            return
        self.facts = fingerprint(self.booster, self.seed, start)
        contents = self.file.read(self.booster)
        if contents is None:
            return
        check_same_fit(contents, self.booster, self.facts, self.file.path)
        posterior, facts = contents.posterior, contents.header["fit"]
        self.is_taken_up = True
        self.facts["start"] = facts["start"]
        self._resume(posterior)
        self.first_new = min(facts["first_new"], len(self.records) - 1)
        if facts["best"] is not None:
            best = contents.best or self.current.mixture
            self.best = (float(facts["best"]), _showing(self.current, best, decode_estimate(facts["best_elbo"])))
        if facts["finished"] and (stop := self._stop()) is not None and stop.sentence == posterior.stop_reason:
            self.final = _showing(self.current, posterior.mixture, posterior.elbo)
            self.stop, self.records = posterior.stop, list(posterior.trace)

    def watch(self, num: int, purpose: str = "") -> None:
        """Called before every evaluation, with how many points it has: budgets hold within an iteration, too."""
        if self.watched != len(self.records):
            before = self.records[self.num_old :]
            self.watched, self.num_now = len(self.records), sum(record.evaluations for record in before)
            self.begun = time.perf_counter() - sum(record.seconds for record in before)
        elapsed = self.crew.seconds(time.perf_counter() - self.begun)
        for rule in self.budgets:
            if (stop := rule.exceeded(elapsed, self.num_now + num - 1)) is not None:
                raise BudgetSpent(stop)
        self.num_now += num

    def note(self, rough: Rough) -> None:
        self.rough = rough

    def end_spent(self, stop: Stop) -> None:
        """A budget was spent in the middle of an iteration: keep what there was before it."""
        self.stop = stop
        if self.state is None:
            self._end_rough(stop, may_evaluate=stop.limit == "seconds")
            return
        self.state = self._better()
        if self.file is not None:
            self._write(self.file, finished=True)

    def _end_rough(self, stop: Stop, may_evaluate: bool) -> None:
        """Of a fit that ends before its first component, the best normal so far. No checkpoint is written, from which
        the same call would go on."""
        what = f"{stop} before the first component was fitted"
        elbo = None if self.rough is None else self.rough.elbo
        if self.rough is None and not may_evaluate:
            raise ValueError(f"The fit has no result: {what}. Give it more.")
        target = identity_map(self.booster.target, self.booster.preconditioner.kind)
        where = "around the start" if self.rough is None else "that the search for coordinates had come to"
        try:
            target = target if self.rough is None else self.rough.target()
            state, record = self.booster.rough(self.key, target, elbo)
        except ValueError as error:
            raise ValueError(f"The fit has no result: {what}. {error} Give it more.") from None
        self.state, self.records = state, [dataclasses.replace(record, evaluations=record.evaluations + self.num_now)]
        self.stop = dataclasses.replace(stop, sentence=what)
        warn(f"{capital(what)}: returning the normal law {where}, which is a poor posterior. Fit again, with more.")

    def go(self, report) -> None:
        if self.final is not None:
            if self.file is not None:
                self.file.finish()
            return
        if self.state is None:
            self._take(*self.booster.init(jax.random.fold_in(self.key, 0), self.may_learn, self.spent), report)
        elif self.is_continued and not self.is_taken_up:
            self._seek()
        while True:
            key = jax.random.fold_in(self.key, self.current.iteration + 1)
            ended = self._stop() is not None
            if self._should_learn(ended):
                self._take(*self.booster.learn(key, self.current, _BEHIND if ended else 0.0, self.spent), report)
            elif (stop := self._end()) is None:
                self._take(*self.booster.step(key, self.current, self.most, self.spent), report)
            else:
                break
        self.stop, self.state = stop, self._better()
        if self._is_broken():
            self._explain(f"The fit stopped: {stop}")
            return
        # Near the target, and in learned coordinates, polishing has next to nothing to gain.
        near = any(rule.means_near and rule.reason(self.records) == stop for rule in self.rules)
        done = near or (self.may_learn and self.current.target.flow is not None)
        if self.booster.refinement is not None and num_active(self.current.mixture) > 1 and not done:
            report.polishing = True
            begun = self.current if self.best is None else self.best[1]
            final, record = self.booster.polish(jax.random.fold_in(self.key, _POLISH_KEY), begun)
            self.final, self.records = final, [*self.records, self.crew.agreed(final, record)]
            report(record)
            self.show(self._posterior(final))
        if self.file is not None:
            self._write(self.file, finished=True)

    def _end(self) -> Stop | None:
        """Why to stop now, if so. A fit that gains no more looks for modes that it lacks before it gives up, and once
        more if those gave it anything."""
        stop, records = self._stop(), self._judged()
        if stop is None or self._is_broken():
            return stop
        fired = [rule for rule in self.rules if rule.reason(records) is not None]
        gave_up = all(rule.gives_up for rule in fired)  # and no budget is spent
        fruitless = self.first_new > 0 and not any(record.accepted for record in records[1:])
        learned = records[0].kind == "flow"  # which has mass at all modes that were found before
        if not gave_up or fruitless or learned or not self._seek():
            return stop
        self.first_new = len(self.records) - 1
        return None

    def _seek(self) -> bool:
        """Look for modes that the mixture lacks, as a diagnosis does; those found are the next starts of the oracle."""
        sought = seek(self.booster, jax.random.fold_in(self.key, _MODES_KEY), self.current, self.spent)
        self.state = sought or self.state
        return sought is not None

    def _should_learn(self, ended: bool) -> bool:
        """Whether to try a flow now."""
        if not self.may_learn or self._is_broken() or not worth_learning(self.records, ended):
            return False
        if not self.booster.can_learn(self.current):
            return False
        bent = is_bent(self.records[0].spread)
        return ended or bent or not has_other_mode(self.booster, self.current, self.spent)

    def _better(self) -> State:
        """The better of the mixture so far and of the one before coordinates were learned."""
        state = self.current
        if state.other is None or not float(state.other.elbo.value) > float(state.elbo.value):
            return dataclasses.replace(state, other=None)
        return dataclasses.replace(state.other, iteration=state.iteration)

    def _resume(self, start: Posterior) -> None:
        """Take the state before polishing, so that a continued fit equals one that never stopped."""
        self.state = resumed(self.booster, jax.random.fold_in(self.key, _MODES_KEY), start)
        self.records = [record for record in start.trace if record.kind != "polish"]
        self.num_old = len(self.records)

    def _take(self, state: State, record: Record, report) -> None:
        self.state, self.records, self.spent = state, [*self.records, self.crew.agreed(state, record)], Counter()
        if record.kind == "flow" and record.accepted:  # the rules judge what is done in the new coordinates
            self.first_new = len(self.records) - 1
        if not self.booster.step_rule.monotone:
            self._keep_best()
        if self.file is not None:
            self._write(self.file, finished=False)
        report(record)
        self.show(self._posterior(state))

    def _write(self, file: Checkpoint, finished: bool) -> None:
        value, best = self.best or (None, None)
        facts = {
            "first_new": self.first_new,
            "best": None if value is None else encode_number(value),
            "best_elbo": None if best is None else encode_estimate(best.elbo),
            "finished": finished,
        }
        file.write(self._shown(), self.facts | facts, best)
        if finished:
            file.finish()

    def _keep_best(self) -> None:
        value = self._value(self._posterior(self.current))
        if self.best is None or math.isnan(self.best[0]) or value > self.best[0]:
            self.best = (value, self.current)

    def _value(self, posterior: Posterior) -> float:
        return float(self.best_by(posterior) if self.best_by is not None else posterior.elbo.value)

    def _is_broken(self) -> bool:
        """Whether the last iteration met too many NaN; one that was made before this call may have been mended."""
        return len(self.records) > self.num_old and self.records[-1].nan_fraction > MAX_NAN_FRACTION

    def _judged(self) -> list[Record]:
        """What the stopping rules read: a flow that was tried in vain is no iteration."""
        records = self.records[self.first_new :]
        return [record for record in records if record.kind != "flow" or record.accepted] or records

    def _stop(self) -> Stop | None:
        records = self._judged()
        if self._is_broken():
            share = f"{records[-1].nan_fraction:.0%} of the draws had a NaN log density"
            return Stop("broken", f"{share} (the limit is {MAX_NAN_FRACTION:.0%}): check the model there")
        # A fit that is continued was near enough before, and is asked for more.
        rules = [rule for rule in self.rules if not (self.is_continued and rule.means_near)]
        return next((stop for rule in rules if (stop := stop_of(rule.reason(records))) is not None), None)

    def end_early(self, error: BaseException) -> None:
        """Say what happened and what there is. Where there is nothing, or nothing but to obey, raise."""
        interruption = interruption_in(error) if isinstance(error, Exception) else error
        if isinstance(interruption, SystemExit):
            raise interruption from error
        if isinstance(interruption, Terminated):
            warn(f"Terminated (SIGTERM) after {len(self.records)} iterations: the process ends. {self._kept()}")
            raise SystemExit(128 + signal.SIGTERM)
        if interruption is None:
            self.crew.give_up(error, self._kept)
        if self.state is None and isinstance(interruption, KeyboardInterrupt):
            return self._end_interrupted(error)
        if self.state is None:
            raise interruption or error
        if interruption is None:
            logging.getLogger("relbo").error("the fit ended early", exc_info=error)
            self.stop = Stop("failed", f"it failed: {last_line(error)}", "memory" if is_memory(error) else "")
            hint = " (set max_memory, or use a smaller family)" if is_memory(error) else ""
            self._explain(f"{last_line(error)}{hint}")
            return
        self.stop = INTERRUPTED
        self._explain("Interrupted")

    def _end_interrupted(self, error: BaseException) -> None:
        """Ctrl-C before the first component: the best normal so far, if there is any."""
        if self.rough is None:
            raise KeyboardInterrupt("relbo.fit was interrupted before there was anything to return.") from error
        self._end_rough(INTERRUPTED, may_evaluate=False)

    def _kept(self) -> str:
        """What is left of a fit whose process ends."""
        if self.file is None:
            return "Nothing of the fit is kept: fit(checkpoint=path) would keep it, and go on from there."
        if self.state is None:
            return "There was nothing to keep yet."
        if self._is_on_disk(self.file):
            return f"The checkpoint {self.file.path} holds the fit: the same call goes on from there."
        return f"The checkpoint could not be written ({self.file.problem})."

    def _is_on_disk(self, file: Checkpoint) -> bool:
        """Whether the file holds all iterations; one whose writing was interrupted is written again."""
        if file.last_written != len(self.records):
            self._write(file, finished=False)
        return file.problem is None and file.last_written == len(self.records)

    def _explain(self, what: str) -> None:
        text = f"{what}: returning the posterior after {len(self.records)} iterations."
        if self.file is None:
            warn(f"{text} To go on: fit(target, start=posterior).")
        elif self._is_on_disk(self.file):
            warn(f"{text} The checkpoint {self.file.path} holds it, too: the same call goes on from there.")
        else:
            warn(f"{text} The checkpoint could not be written ({self.file.problem}): relbo.save it elsewhere.")

    def posterior(self) -> Posterior:
        """The polished mixture, or the best iterate of a rule that is not monotone, or the last one."""
        if self.state is not None:
            self.state = self._better()
        return self._shown()

    def _shown(self) -> Posterior:
        return self._posterior(self.final or (self.best[1] if self.best is not None else self.current))

    def _posterior(self, shown: State) -> Posterior:
        return Posterior(
            shown.mixture, shown.target, shown.elbo, list(self.records), self.stop, self.booster, self.current
        )


def _showing(state: State, mixture: Mixture, elbo: Estimate) -> State:
    return dataclasses.replace(state, mixture=mixture, elbo=elbo)
