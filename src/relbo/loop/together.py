"""The processes that run one fit: all run the same loop, and agree on what could differ between them."""

import contextlib
import dataclasses
import signal
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from relbo.boosting.booster import Booster
from relbo.boosting.state import State
from relbo.boosting.stopping import AbstractStop
from relbo.distributed.agreeing import check_same, digest_of, gathered, is_first, versions
from relbo.loop.words import last_line
from relbo.mixture import weights_of
from relbo.model.placing import is_together
from relbo.records.trace import Record
from relbo.storage.files import encode_family, settings_of

_EVERY = 32
"""Calls of the model between two looks at the clock of the first process, and at whether somebody pressed Ctrl-C."""


class Crew:
    """The processes of one fit. One that is alone has nothing to agree on, and every method returns at once."""

    def __init__(self, booster: Booster):
        self.together = is_together(booster.target, booster.points_over)
        self.is_first = not self.together or is_first()
        self._num_calls, self._elapsed, self._interrupted = 0, 0.0, False

    def check(self, booster: Booster, rules: list[AbstractStop], seed: int, has_checkpoint: bool) -> None:
        """Raise a ValueError in every process if they are not about to do the same."""
        if not self.together:
            return
        target = booster.target
        data = [(leaf.shape, leaf.dtype.name) for leaf in jax.tree.leaves(target.held_data())]
        check_same(
            versions()
            | {
                "their devices": f"{jax.default_backend()}, {jax.local_devices()[0].device_kind}",
                "the seed": seed,
                "the model": (type(target).__name__, target.dim, target.dtype.name, target.coordinate_names()),
                "the shapes of the data": data,
                "the settings of the fit": (encode_family(booster.family), settings_of(booster)),
                "the stopping rules": rules,
                "whether there is a checkpoint": has_checkpoint,
            }
        )

    def seconds(self, elapsed: float) -> float:
        """What has elapsed by the clock of the first process, as of a few evaluations ago.

        Ctrl-C in any of them is raised in all, here: they are at the same place.
        """
        if not self.together:
            return elapsed
        self._num_calls += 1
        if self._num_calls % _EVERY == 1:
            found = [struct.unpack("d?", each) for each in gathered(struct.pack("d?", elapsed, self._interrupted))]
            self._elapsed = found[0][0]
            if any(interrupted for _, interrupted in found):
                self._interrupted = False
                raise KeyboardInterrupt
        return self._elapsed

    def agreed(self, state: State, record: Record) -> Record:
        """The record with the first process's times; all must have come to the same mixture."""
        if not self.together:
            return record
        mixture = (weights_of(state.mixture), state.mixture.params, np.float64(state.elbo.value), record.evaluations)
        own = struct.pack("dd", record.seconds, record.compile_seconds) + digest_of(mixture)
        found = gathered(own)
        if len({each[16:] for each in found}) > 1:
            raise RuntimeError(
                f"The processes have come to different mixtures in iteration {record.iteration}: their machines do not "
                "compute the same bits. Use machines of one kind, with the same versions."
            )
        seconds, compile_seconds = struct.unpack("dd", found[0][:16])
        return dataclasses.replace(record, seconds=seconds, compile_seconds=compile_seconds)

    def give_up(self, error: BaseException, kept: Callable[[], str]) -> None:
        """One process alone cannot go on, nor return what it has: the others would wait for it."""
        if not self.together:
            return
        if isinstance(error, jax.errors.JaxRuntimeError):
            what = f"Another process of this fit has died or cannot be reached ({last_line(error)})."
        else:
            what = f"Process {jax.process_index()} of this fit failed ({last_line(error)}): the others end, too."
        raise RuntimeError(f"{what} {kept()} Start all processes again.") from error

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Within it Ctrl-C is told to the others, and raised in all at once; the second time it is raised here."""
        if not self.together or threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.getsignal(signal.SIGINT)

        def interrupt(number: int, frame: Any) -> None:
            if self._interrupted or not callable(before):
                raise KeyboardInterrupt
            self._interrupted = True

        signal.signal(signal.SIGINT, interrupt)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)
