"""From what a user writes to a `Booster`: defaults, names, and the paper's presets."""

import dataclasses
import math
from typing import Any

from relbo.ascent import AbstractAscent, GradientAscent, NaturalAscent
from relbo.boosting.booster import Booster
from relbo.budgets import MIN_IMPROVEMENT, Budget, budget
from relbo.coordinates.race import KINDS, Preconditioner
from relbo.families import DENSE_LIMIT, AbstractFamily, resolve_family
from relbo.model.memory import affordable_draws, as_bytes, check_size, points_at_once
from relbo.objectives import ESTIMATORS, RELBO, AbstractEstimator, AbstractObjective, FiniteStep
from relbo.oracles import AbstractOracle, AscentOracle, GradientOracle, JointOracle, LaplaceOracle, Starts
from relbo.runtime.choices import choose_name, choose_object, whole_number
from relbo.steps import STEPS, AbstractStep, Fixed, FullyCorrective, LineSearch
from relbo.targets import as_target

OBJECTIVES: dict[str, AbstractObjective] = {"finite_step": FiniteStep(), "relbo": RELBO()}
_FULL_DATA_DRAWS = 2048  # with minibatches what is measured still uses all data, so on fewer draws
_FLOW_STEPS, _FLOW_RATE = 800, 0.01  # a flow has many weights: more steps than Adam takes elsewhere, and shorter
_SCORE_DRAWS = 256  # per component and step: values carry far less than gradients
_PAPER_STEPS: dict[str, AbstractStep] = {
    "fixed": Fixed(),
    "line_search": LineSearch(num_draws=1000),
    "fully_corrective": FullyCorrective(num_draws=1000),
}  # draws a component: as many as the authors' code takes for its regressions


def make_booster(
    target: Any,
    *,
    family: str | AbstractFamily = "normal",
    objective: str | AbstractObjective = "finite_step",
    oracle: str | AbstractOracle | None = None,
    step: str | AbstractStep = "fully_corrective",
    estimator: str | AbstractEstimator | None = None,
    refine: str | AbstractAscent | bool = True,
    precondition: str | Preconditioner = "auto",
    min_improvement: float | None = None,
    num_measure: int | None = None,
    max_memory: int | str | None = None,
) -> Booster:
    """A booster to drive by hand; `relbo.fit` takes the same settings. Every setting is a name or an object.

    Arguments:
        family: of the components. Normal ones get the natural-gradient oracle and refinement, all others Adam.
        objective, oracle, step: what a new component is chosen by, where it is sought, how weights are found.
        estimator: of gradients; a target that has none gets the score function's.
        refine: whether all components are moved together after each iteration, or the ascent that does it.
        precondition: in which coordinates: behind an affine map that a race finds ("affine"), and behind a flow, too,
            always ("flow") or where it pays ("auto"; see `Preconditioner`).
        min_improvement: nats that an iteration must gain to be kept: 1e-4; -inf for the fixed step, not monotone.
        num_measure: draws, over all slots of the mixture, that measure ELBO and gap in an iteration at the most: 8,192,
            or 2,048 with minibatches. Fewer cost less where the model is expensive, and errors grow.
        max_memory: bytes, or "2GB", for evaluations and draws beyond the data; about 1 GB of evaluations by default.
    """
    target = as_target(target)
    memory = None if max_memory is None else as_bytes(max_memory)
    target = target if memory is None else target.within(memory)
    chosen_family = resolve_family(family, target.dim)
    afford = budget(target.dim)
    suited = chosen_family.climbs_by
    chosen_estimator = _estimator(target, estimator)
    chosen_oracle = choose_object("oracle", oracle or suited, _oracles(afford), AbstractOracle)
    if refine is True or refine is False or refine is None:
        refinement = _refinements(afford)[suited] if refine else None
    else:
        refinement = choose_object("refine", refine, _refinements(afford), AbstractAscent)
    if chosen_oracle.needs_gradient and not target.differentiable:
        raise ValueError('oracle="laplace" needs gradients, and this target has none. Use oracle="natural".')
    first = chosen_oracle.first_ascent() or _ascents(afford)[suited]
    if not chosen_estimator.needs_gradient:
        chosen_oracle, first = chosen_oracle.with_draws(_SCORE_DRAWS), first.with_draws(_SCORE_DRAWS)
        refinement = None if refinement is None else refinement.with_draws(_SCORE_DRAWS)
    chosen_oracle.check(chosen_family)
    for ascent in (first, refinement):
        if ascent is not None:
            ascent.check(chosen_family)
    maps = {kind: Preconditioner(kind, num_draws=afford.ascent_draws) for kind in KINDS}
    precondition = choose_object("precondition", precondition, maps, Preconditioner)
    _check_flow(precondition.kind, target)
    check_size(chosen_family, target.dim, target.dtype, afford.capacity, precondition.kind == "dense", memory)
    if num_measure is None:
        num_measure = _FULL_DATA_DRAWS if target.subsamples else afford.measure_draws
    num_measure = whole_number("num_measure", num_measure, 64)
    chosen_step = choose_object("step", step, _steps(afford), AbstractStep)
    chosen_step.check(chosen_family)
    if min_improvement is None:
        min_improvement = MIN_IMPROVEMENT if chosen_step.monotone else -math.inf
    return Booster(
        target=target,
        family=chosen_family,
        objective=choose_object("objective", objective, OBJECTIVES, AbstractObjective),
        oracle=chosen_oracle,
        step_rule=chosen_step,
        estimator=chosen_estimator,
        first_ascent=first,
        refinement=refinement,
        preconditioner=precondition,
        min_improvement=min_improvement,
        num_measure=affordable_draws(num_measure, target.dim, target.dtype, memory),
        points_at_once=points_at_once(target, memory),
    )


def _check_flow(kind: str, target) -> None:
    if kind == "flow" and not (target.differentiable and 2 <= target.dim <= DENSE_LIMIT):
        what = f"{target.dim} dimension{'s' if target.dim > 1 else ''}" if target.differentiable else "no gradient"
        raise ValueError(
            f'precondition="flow" needs gradients and 2 to {DENSE_LIMIT} dimensions, and this target has {what}. Use '
            'precondition="affine".'
        )


def paper(variant: str = "fully_corrective", *, family: str | AbstractFamily = "mean_field_normal") -> dict[str, Any]:
    """The paper's settings, to pass to `fit`: `relbo.fit(target, **relbo.paper("line_search"))`.

    RELBO with lambda = 1/sqrt(t+1) over a bounded family, plain reparameterised gradients with Adam from one random
    start, no refinement, no whitening, every component kept, no stopping rule but the number of components. Variant 0
    is "fixed", 1 is "line_search", 2 is "fully_corrective"; the two that search do so on 1,000 draws of every
    component, as the authors' code does for its regressions.
    """
    choose_name("variant", variant, tuple(_PAPER_STEPS))
    starts = Starts(num_residual=0, num_modes=0, num_initial=0, num_random=1)
    return {
        "family": family,
        "objective": RELBO("1/sqrt(t+1)"),
        "oracle": GradientOracle(num_steps=1000, num_draws=16, num_restarts=1, starts=starts),
        "step": _PAPER_STEPS[variant],
        "estimator": "reparameterized",
        "refine": False,
        "precondition": "none",
        "min_improvement": -math.inf,
        "stop": (),
        "max_components": 20,
    }


def _estimator(target, estimator) -> AbstractEstimator:
    if estimator is None:
        return ESTIMATORS["sticking_the_landing" if target.differentiable else "score"]
    chosen = choose_object("estimator", estimator, ESTIMATORS, AbstractEstimator)
    if chosen.needs_gradient and not target.differentiable:
        raise ValueError('This target has no gradient. Use estimator="score", or leave the estimator to relbo.')
    return chosen


def _oracles(afford: Budget) -> dict[str, AbstractOracle]:
    starts = Starts(afford.num_residual, afford.num_walks, afford.num_initial, num_draws=afford.start_draws)
    restarts = {"natural": afford.num_restarts, "gradient": 4, "flow": 2}
    climbing = {
        name: AscentOracle(ascent=ascent, num_restarts=min(restarts[name], afford.num_restarts), starts=starts)
        for name, ascent in _ascents(afford).items()
    }
    return {
        **climbing,
        "laplace": LaplaceOracle(num_restarts=min(8, 2 * afford.num_restarts), starts=starts),
        "joint": JointOracle(),
    }


def _ascents(afford: Budget) -> dict[str, AbstractAscent]:
    """By the names of `AbstractFamily.climbs_by`: what moves proposals."""
    return {
        "natural": NaturalAscent(num_draws=afford.ascent_draws, step_size=afford.step_size),
        "gradient": GradientAscent(num_draws=min(16, afford.ascent_draws)),
        "flow": _slow_gradient(afford, _FLOW_STEPS),
    }


def _refinements(afford: Budget) -> dict[str, AbstractAscent]:
    gradient = GradientAscent(num_steps=200, num_draws=min(16, afford.ascent_draws), learning_rate=0.02)
    natural = NaturalAscent(num_draws=afford.refine_draws, step_size=afford.refine_step_size)
    return {"natural": natural, "gradient": gradient, "flow": _slow_gradient(afford, _FLOW_STEPS // 4)}


def _slow_gradient(afford: Budget, num_steps: int) -> GradientAscent:
    """Adam for flows, whose numbers are weights: steps that suit locations and scales would tear them."""
    return GradientAscent(num_steps, num_draws=min(16, afford.ascent_draws), learning_rate=_FLOW_RATE)


def _steps(afford: Budget) -> dict[str, AbstractStep]:
    def thrifty(step):
        return dataclasses.replace(step, num_draws=min(step.num_draws, afford.weight_draws))

    return {name: thrifty(step) for name, step in STEPS.items()}
