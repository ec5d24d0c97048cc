"""One cell of the comparison, in a process of its own: `peers_cell.py METHOD MODEL SEED CORE LIMIT OUT`.

In this order: pin to the core; import what the method imports (timed, with the start of Python); read the model and its
data (not timed); run the method until its draws are there (timed, `LIMIT` CPU seconds together with the imports);
measure the draws in float64 (not timed); write the facts to `OUT`. What ends it before, its parent
records.
"""

import json
import math
import os
import resource
import signal
import sys
from importlib import import_module
from pathlib import Path

from clock import CompileClock, Usage
from methods import METHODS
from methods.base import NotApplicable, Task


def main() -> None:
    begun = Usage.now()
    method_name, model_name, seed, core, limit, out = sys.argv[1:]
    pin(int(core))
    allow_cpu_seconds(float(limit))
    method = METHODS[method_name]
    run = import_module(f"methods.{method.module}").run
    imported = Usage.now()
    from posteriors import MODELS

    model = MODELS[model_name]
    data = model.data()
    prepared = Usage.now()
    allow_cpu_seconds(float(limit) - imported.cpu)
    with CompileClock() as clock:
        task = Task(model, data, int(seed), method.settings, clock)
        try:
            outcome = run(task)
        except NotApplicable as error:
            facts = {"kind": "not applicable", "reason": str(error)}
        except Exception as error:  # the method's own trouble, which is a result
            facts = {"kind": "failed", "reason": f"{type(error).__name__}: {first_line(error)}"}
        else:
            finished = Usage.now()
            facts = {"kind": "done", **times(begun, imported, prepared, finished, clock.seconds)}
            facts["peak_memory_mb"] = peak_memory_mb()
    allow_cpu_seconds(math.inf)
    if facts["kind"] == "done":
        from peers_measure import measure, plain

        facts["num_gradients"] = outcome.num_gradients
        facts = plain({**facts, **outcome.facts, **measure(model, data, outcome)})
    Path(out).write_text(json.dumps(facts))


def first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "")[:500]


def pin(core: int) -> None:
    """To one core, where the system can; on another the threads of a library may use several."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {core})


def allow_cpu_seconds(seconds: float) -> None:
    """So many more of the processor, and then the system ends the process with SIGXCPU."""
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    used = resource.getrusage(resource.RUSAGE_SELF)
    soft = hard if math.isinf(seconds) else math.ceil(used.ru_utime + used.ru_stime + max(seconds, 1))
    signal.signal(signal.SIGXCPU, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (soft, hard))


def times(begun: Usage, imported: Usage, prepared: Usage, finished: Usage, compile_wall: float) -> dict[str, dict]:
    """Wall and CPU seconds by part. A compiler's CPU seconds are its share of the wall clock, on one core the same."""
    work = finished.since(prepared)
    share = compile_wall / work.wall
    wall = {"imports": imported.since(begun).wall, "compile": compile_wall, "run": work.wall - compile_wall}
    cpu = {"imports": imported.cpu, "compile": share * work.cpu, "run": (1 - share) * work.cpu}
    return {"wall_seconds": {**wall, "total": sum(wall.values())}, "cpu_seconds": {**cpu, "total": sum(cpu.values())}}


def peak_memory_mb() -> float:
    """The largest resident size so far. /proc knows that of this program; getrusage, that of its parent too."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
