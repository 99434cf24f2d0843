"""Which rank gets how many tokens: shares of experts, draws, placement, copies."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hardware_models.errors import InputError
from twin.cluster.files import Longs, read_placement, read_token_counts
from twin.cluster.options import ExpertLoad, Placement

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Routing:
    """Tokens of one step: ``tokens[pass, rank, slot]`` copies per expert slot of each rank."""

    tokens: Longs

    @property
    def per_rank(self) -> Longs:
        """[pass, rank] token copies."""
        return np.asarray(self.tokens.sum(axis=2))

    @property
    def active(self) -> Longs:
        """[pass, rank] experts with at least one token."""
        return np.asarray((self.tokens > 0).sum(axis=2))


@dataclass(frozen=True)
class Experts:
    """The experts of a deployment: their shares of the load by layer, and where they are.

    ``slots[layer, rank, place]`` is the logical expert there.
    """

    shares: Floats
    slots: Longs

    def route(self, layer: int, copies: int, rng: np.random.Generator) -> Longs:
        """Draw ``copies`` tokens of one layer; [rank, place] counts.

        Copies of an expert take equal parts of its tokens, the first ones one more each.
        """
        counts = rng.multinomial(copies, self.shares[layer])
        slots = self.slots[layer].reshape(-1)
        order = np.argsort(slots, kind="stable")
        sorted_slots = slots[order]
        first = np.searchsorted(sorted_slots, sorted_slots)
        nth = np.arange(len(slots)) - first
        held = np.bincount(slots, minlength=len(counts))
        base, rest = np.divmod(counts, held)
        tokens = np.empty_like(slots)
        tokens[order] = base[sorted_slots] + (nth < rest[sorted_slots])
        return np.asarray(tokens.reshape(self.slots[layer].shape))


def experts_of(
    load: ExpertLoad,
    placement: Placement,
    *,
    layers: int,
    experts: int,
    ranks: int,
    redundant: int,
    rng: np.random.Generator,
) -> Experts:
    """Shares and places of all experts.

    Raises:
        InputError: a file is wrong, or slots and ranks do not match.
    """
    slots, rest = divmod(experts + redundant, ranks)
    if rest:
        raise InputError("ranks", ranks, f"a divisor of {experts} + {redundant} experts")
    shares = _shares(load, layers, experts, rng)
    if placement.file is not None:
        fixed = read_placement(placement.file, experts + redundant, experts)
        places = np.broadcast_to(fixed, (layers, len(fixed)))
    else:
        places = np.stack([_place(placement, layer, redundant, ranks, slots) for layer in shares])
    return Experts(shares, places.reshape(layers, ranks, slots))


def _shares(load: ExpertLoad, layers: int, experts: int, rng: np.random.Generator) -> Floats:
    if load.kind == "file":
        assert load.file is not None
        counts = read_token_counts(load.file, layers, experts).astype(np.float64)
    elif load.kind == "zipf":
        ranked = np.arange(1, experts + 1) ** -load.exponent
        counts = np.stack([rng.permutation(ranked) for _ in range(layers)])
    elif load.kind == "lognormal":
        counts = np.exp(load.sigma * rng.standard_normal((layers, experts)))
    else:
        counts = np.ones((layers, experts))
    return np.asarray(counts / counts.sum(axis=1, keepdims=True))


def _place(placement: Placement, shares: Floats, redundant: int, ranks: int, slots: int) -> Longs:
    """The expert of each slot of one layer; copies go, one by one, to the fullest slots."""
    copies = np.ones(len(shares), np.int64)
    for _ in range(redundant):
        copies[np.argmax(shares / copies)] += 1
    extra = np.repeat(np.arange(len(shares)), copies - 1)
    everyone = np.concatenate([np.arange(len(shares)), extra])
    if placement.kind == "contiguous":
        return everyone
    weight = (shares / copies)[everyone]
    load, filled = np.zeros(ranks), np.zeros(ranks, np.int64)
    places = np.empty((ranks, slots), np.int64)
    for i in np.argsort(-weight, kind="stable"):
        rank = int(np.argmin(np.where(filled < slots, load, np.inf)))
        places[rank, filled[rank]] = everyone[i]
        load[rank] += weight[i]
        filled[rank] += 1
    return places.reshape(-1)
