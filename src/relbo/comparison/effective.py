"""How many independent draws a set of Markov chains is worth for a mean."""

import numpy as np


def effective_size(values: np.ndarray, num_chains: int) -> float:
    """Of `values` (num,), chain after chain, for their mean. Without chains (0) the draws count as independent.

    Autocorrelations of split chains, cut by Geyer's initial monotone sequence (Vehtari et al. 2021, without ranks).
    Chains that stay in different places are worth little: the variance between them enters. Never more than there are.
    """
    if num_chains == 0:
        return float(len(values))
    halves = _split(values.reshape(num_chains, -1))
    num = halves.shape[1]
    covariance = _autocovariance(halves).mean(axis=0)
    within = covariance[0] * num / (num - 1)
    total = covariance[0] + halves.mean(axis=1).var(ddof=1)
    if total <= 0:
        return float(len(values))
    correlation = 1 - (within - covariance) / total
    correlation[0] = 1.0
    pairs = correlation[: num // 2 * 2].reshape(-1, 2).sum(axis=1)
    negative = np.flatnonzero(pairs < 0)
    pairs = np.minimum.accumulate(pairs[: negative[0]] if len(negative) else pairs)
    time = max(1.0, 2 * pairs.sum() - 1)
    return float(halves.size / time)


def _split(chains: np.ndarray) -> np.ndarray:
    half = chains.shape[1] // 2
    return np.concatenate([chains[:, :half], chains[:, chains.shape[1] - half :]])


def _autocovariance(chains: np.ndarray) -> np.ndarray:
    num = chains.shape[1]
    centred = chains - chains.mean(axis=1, keepdims=True)
    spectrum = np.fft.rfft(centred, 2 * num, axis=1)
    return np.fft.irfft(np.abs(spectrum) ** 2, 2 * num, axis=1)[:, :num] / num
