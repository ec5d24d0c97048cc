r"""Theorem 2 of the paper, and a counter-example: bounded parameters do not bound the curvature of the KL.

The curvature constant is $C_f = \sup \tfrac{2}{\gamma^2} \varphi(\gamma)$ with $\varphi(\gamma) = \mathrm{KL}(q +
\gamma (s - q) \,\|\, q)$. The theorem says that it is bounded when the parameters of the components are. Its proof
takes $\|s - q\|^2$ for the limit at $\gamma \to 0$, where the limit is

$$\varphi''(0) = \int \frac{(s - q)^2}{q} = \chi^2(s \| q).$$

For $q = N(0, 1)$ and $s = N(0, r)$ that is $1/\sqrt{r (2 - r)} - 1$ below $r = 2$, and infinite from there on. Then
$\varphi$ falls more slowly than $\gamma^2$: the integral is cut off where $\gamma s = q$, at $z^2 = 2 \log(1/\gamma) /
(1 - 1/r)$. That leaves $2 \varphi(\gamma) / \gamma^2$ of the order of $\gamma^{-a}$ with $a = (r - 2)/(r - 1)$, up to
logarithms. The induction of Theorem 1, $h_{t+1} \le (1 - \gamma) h_t + \varphi(\gamma)$ with $\gamma = 2/(t+2)$, then
gives $h_t = O(t^{-(1 - a)}) = O(t^{-1/(r-1)})$ in place of $O(1/t)$. Enough for a finite constant: locations in a
bounded set and, in every direction, no variance twice as large as another.
"""

import math
from typing import Any

import numpy as np

RATIOS = (1.5, 1.9, 2.5, 3.0, 4.0)
"""Of the variance of s to that of q."""
_PLACES = 400_001


def divergence(ratio: float, gamma: float) -> float:
    r"""$\varphi(\gamma)$ for $q = N(0, 1)$, $s = N(0, r)$, by quadrature.

    As $\int q\, h(\gamma (s/q - 1))$ with $h(u) = (1 + u) \log(1 + u) - u \ge 0$, in which nothing cancels.
    """
    reach = 9 * math.sqrt(ratio) + math.sqrt(2 * math.log(1 / gamma) / abs(1 - 1 / ratio)) if ratio != 1 else 9.0
    z = np.linspace(-reach, reach, _PLACES)
    log_q = -0.5 * z**2 - 0.5 * math.log(2 * math.pi)
    log_ratio = 0.5 * z**2 * (1 - 1 / ratio) - 0.5 * math.log(ratio)
    u = gamma * np.expm1(log_ratio)
    small = np.clip(u, -1e-3, 1e-3)
    series = small**2 * (0.5 - small / 6 + small**2 / 12)
    with np.errstate(divide="ignore"):
        log_h = np.log(np.where(np.abs(u) < 1e-3, series, np.maximum((1 + u) * np.log1p(u) - u, 0.0)))
    return float((z[1] - z[0]) * np.sum(np.exp(log_q + log_h)))


def curve(ratio: float, exponents: tuple[float, ...]) -> dict[str, Any]:
    """2 KL / gamma^2 at gamma = 10^-e, its limit, and what the proof takes for the limit."""
    gammas = [10.0**-exponent for exponent in exponents]
    values = [2 * divergence(ratio, gamma) / gamma**2 for gamma in gammas]
    slope = math.log(values[-1] / values[-2]) / math.log(gammas[-1] / gammas[-2])
    return {
        "ratio": ratio,
        "gamma": gammas,
        "value": values,
        "limit": 1 / math.sqrt(ratio * (2 - ratio)) - 1 if ratio < 2 else math.inf,
        "limit_of_the_proof": squared_distance(ratio),
        "exponent": slope,
        "exponent_expected": -max(0.0, (ratio - 2) / (ratio - 1)),
    }


def squared_distance(ratio: float) -> float:
    r"""$\|s - q\|^2 = \int (s - q)^2$ in closed form."""
    both = 1 / math.sqrt(2 * math.pi * (1 + ratio))
    return (1 + 1 / math.sqrt(ratio)) / (2 * math.sqrt(math.pi)) - 2 * both
