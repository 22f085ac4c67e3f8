"""Random numbers on the array module's own device, from one seed."""

import secrets
from typing import Any

import numpy as np

from cudal2_agent.contract.settings.options import VerifyOptions
from cudal2_agent.sandbox.verification.elements import Array

SEED_BITS = 48  # a command line and JSON carry such a number exactly


def seed_of(options: VerifyOptions) -> int:
    """The seed that the options give, else one from the system's entropy, which no author of a kernel can predict."""
    return secrets.randbits(SEED_BITS) if options.seed is None else options.seed


class Draws:
    """Draws for one set of inputs. Index choices are drawn on the host, where they are small."""

    def __init__(self, xp: Any, seed: int) -> None:
        self.xp = xp
        self.host = np.random.default_rng(seed)
        self._device = np.random.default_rng(seed) if xp is np else xp.random.Generator(xp.random.Philox4x3210(seed))

    def normal(self, shape: tuple[int, ...]) -> Array:
        return self._device.standard_normal(shape, dtype=self.xp.float32)

    def uniform(self, shape: tuple[int, ...]) -> Array:
        """Uniform in [0, 1)."""
        return self._device.random(shape, dtype=self.xp.float32)

    def hits(self, shape: tuple[int, ...], probability: float) -> Array:
        """1 with the given probability, else 0."""
        return (self.uniform(shape) < probability).astype(self.xp.float32)

    def signs(self, shape: tuple[int, ...]) -> Array:
        return 1 - 2 * self.hits(shape, 0.5)

    def odd(self, shape: tuple[int, ...], low: int, high: int) -> Array:
        """Odd whole numbers in low..high (both odd) with a random sign."""
        steps = (high - low) // 2 + 1
        magnitude = low + 2 * self.xp.floor(self.uniform(shape) * steps)
        return self.xp.minimum(magnitude, self.xp.float32(high)) * self.signs(shape)

    def pairs(self, size: int, most: int) -> tuple[Array, Array]:
        """Two disjoint lists of indices below `size`, matched at random, so that one side can cancel what the other adds."""
        order = self.host.permutation(size)
        count = min(size // 2, most)
        return self.xp.asarray(order[:count]), self.xp.asarray(order[count : 2 * count])

    def indices(self, size: int, count: int) -> list[int]:
        """Distinct indices below `size`, at most `count`."""
        return [int(index) for index in self.host.permutation(size)[:count]]

    def edges(self, size: int, count: int) -> list[int]:
        """Distinct indices below `size`, at most `count`: the first, the last and drawn ones, in random order."""
        chosen = list(dict.fromkeys((0, size - 1, *self.indices(size, count))))[:count]
        return [chosen[index] for index in self.host.permutation(len(chosen))]

    def halves(self, size: int) -> tuple[slice, slice]:
        """Half of `size` indices, rounded down, at one end or the other, and the rest."""
        if self.host.integers(2):
            return slice(0, size // 2), slice(size // 2, size)
        return slice(size - size // 2, size), slice(0, size - size // 2)

    def half(self, size: int) -> np.ndarray:
        """True at a random half of `size` places, on the host. Shape: (size,)."""
        return np.asarray(self.host.permutation(size) < (size + int(self.host.integers(2))) // 2)
