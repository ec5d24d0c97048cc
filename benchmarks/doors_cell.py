"""What `doors.py` runs in processes of their own: `doors_cell.py fit NAME OUT`, `doors_cell.py reference NAME ...`."""

import json
import sys
import time
import warnings
from pathlib import Path

import numpy as np

from unseen import CASES, Case, load_reference
from unseen.base import columns, save_reference

NUM_DRAWS = 20_000
NUM_RESAMPLED = 10_000


def main() -> None:
    if sys.argv[1] == "reference":
        for name in sys.argv[2:]:
            begun = time.process_time()
            found = save_reference(CASES[name])
            seconds = time.process_time() - begun
            print(f"reference of {name}: {found.how}, r-hat {found.r_hat:.3f}, {seconds:.0f} CPU s", flush=True)
        return
    name, out = sys.argv[2:]
    facts = fit(CASES[name])
    Path(out).write_text(json.dumps(facts, indent=1) + "\n")


def fit(case: Case) -> dict:
    """Default settings throughout: what a new user would call."""
    import relbo

    begun = time.process_time()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        target = case.target()
        posterior = relbo.fit(target, progress_bar=False)
        fitted = time.process_time()
        found = relbo.diagnose(posterior)
    ended = time.process_time()
    draws, effective = posterior.sample(NUM_DRAWS, seed=1), NUM_DRAWS
    if found.status == "resample":
        try:
            draws, effective = relbo.resample(posterior, NUM_RESAMPLED), min(NUM_RESAMPLED, found.defensive.ess)
        except ValueError as refused:  # by other, and more, draws than those of the verdict: as it says, as they are
            print(refused, file=sys.stderr)
    return {
        "status": found.status,
        **errors(case, draws, effective),
        "dim": target.dim,
        "cpu_seconds": round(ended - begun, 1),
        "fit_seconds": round(fitted - begun, 1),
        "num_components": posterior.num_components,
        "num_evaluations": posterior.num_evaluations,
        "kl": [float(found.kl.value), float(found.kl.std_err)],
        "k_hat": [found.k_hat, found.defensive.k_hat],
        "stop_reason": posterior.stop_reason,
        "verdict": found.verdict,
        "warnings": sorted({str(one.message) for one in caught if "relbo" in str(one.filename) or "fit" in str(one)}),
    }


def errors(case: Case, draws, effective: float) -> dict:
    """The largest errors against the reference, and what is left of them beyond twice the errors of both."""
    reference = load_reference(case.name)
    if reference is None:
        raise FileNotFoundError(f"there is no reference of {case.name}")
    names, matrix = columns(case.view(draws))
    shared = [name for name in reference.names if name in names]
    if not shared:
        raise ValueError(f"no name in common: {names} here, {reference.names} there")
    here, there = ([listed.index(name) for name in shared] for listed in (names, reference.names))
    sd = reference.sd[there]
    off = (matrix.mean(axis=0)[here] - reference.mean[there]) / sd
    stretch = matrix.std(axis=0)[here] / sd - 1
    kurtosis = np.mean(((matrix - matrix.mean(axis=0)) / matrix.std(axis=0)) ** 4, axis=0)[here]
    off_error = np.hypot(effective**-0.5, reference.mean_error[there] / sd)
    stretch_error = np.hypot(np.sqrt((kurtosis - 1) / 4 / effective), reference.sd_error[there] / sd)
    by_mean, by_sd = int(np.argmax(np.abs(off))), int(np.argmax(np.abs(stretch)))
    return {
        "mean_error": float(np.abs(off).max()),
        "sd_error": float(np.abs(stretch).max()),
        "mean_excess": float((np.abs(off) - 2 * off_error).max()),
        "sd_excess": float((np.abs(stretch) - 2 * stretch_error).max()),
        "worst": f"mean of {shared[by_mean]} {off[by_mean]:+.3f}, sd of {shared[by_sd]} {stretch[by_sd]:+.1%}",
        "num_compared": len(shared),
    }


if __name__ == "__main__":
    main()
