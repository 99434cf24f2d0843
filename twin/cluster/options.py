"""What makes the dies of a cluster differ: KV lengths, expert load, placement, jitter."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from hardware_models.errors import InputError

LoadKind = Literal["balanced", "uniform", "zipf", "lognormal", "file"]
PlacementKind = Literal["contiguous", "spread", "file"]

_EXPONENT, _SIGMA = 1.0, 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class KvLengths:
    """KV lengths of the requests: the workload's value, a range, or one a request in a file.

    A range is drawn evenly, both ends included.  A file has one whole number a line, request
    by request; dies take consecutive requests.
    """

    low: int | None = None
    high: int | None = None
    file: str | None = None

    def check(self) -> None:
        """Refuse half a range, an empty one, and a range beside a file.

        Raises:
            InputError: names the key.
        """
        if (self.low is None) != (self.high is None):
            raise InputError("kv", [self.low, self.high], "both low and high, or neither")
        if self.low is not None and self.high is not None:
            if self.file is not None:
                raise InputError("kv.file", self.file, "no file beside a range")
            if not 1 <= self.low <= self.high:
                raise InputError("kv.low", self.low, f"a whole number from 1 to {self.high}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertLoad:
    """How tokens fall on routed experts.

    ``balanced`` deals them evenly and draws nothing.  The others draw each layer's tokens
    from shares: equal ones (``uniform``), 1 / rank**exponent (``zipf``), exp(sigma x normal)
    (``lognormal``), or what a file counts (``file``; see :mod:`twin.cluster.load`).  Each
    layer has hot experts of its own.
    """

    kind: LoadKind = "balanced"
    exponent: float = _EXPONENT
    sigma: float = _SIGMA
    file: str | None = None

    def check(self) -> None:
        """Refuse parameters out of range or of another kind, and a file missing or not asked for.

        Raises:
            InputError: names the key.
        """
        for name, value, kind, default in (
            ("exponent", self.exponent, "zipf", _EXPONENT),
            ("sigma", self.sigma, "lognormal", _SIGMA),
        ):
            if not 0.0 <= value <= 10.0:
                raise InputError(f"load.{name}", value, "a number from 0 to 10")
            if self.kind != kind and value != default:
                allowed = f"{default} without load.kind={kind}, which alone has a use for it"
                raise InputError(f"load.{name}", value, allowed)
        if (self.kind == "file") != (self.file is not None):
            raise InputError("load.file", self.file, "a file where, and only where, kind is file")


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Which rank holds which experts; the schedule says how many copies there are.

    ``contiguous``: experts in order, then copies of the hottest ones; ``spread``: the hottest
    first, each to the rank with the least load so far (what EPLB does); ``file``: the logical
    expert of each physical slot, rank after rank.
    """

    kind: PlacementKind = "contiguous"
    file: str | None = None

    def check(self) -> None:
        """Refuse a file that is missing or not asked for.

        Raises:
            InputError: names the key.
        """
        if (self.kind == "file") != (self.file is not None):
            raise InputError(
                "placement.file", self.file, "a file where, and only where, kind is file"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Jitter:
    """Coefficients of variation of heads: of matrix products, and of all other ops.

    Published in-network kernels of A3 dies vary by 1 to 4% for products and 5 to 11% for
    other ops; the defaults are in the middle.  Collectives have no head of their own: they
    vary because their members come at different times.
    """

    matmul: float = 0.025
    other: float = 0.08

    def check(self) -> None:
        """Refuse coefficients out of range.

        Raises:
            InputError: names the key.
        """
        for name, value in (("matmul", self.matmul), ("other", self.other)):
            if not 0.0 <= value <= 2.0:
                raise InputError(f"jitter.{name}", value, "a number from 0 to 2")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """All of it together."""

    kv: KvLengths = field(default_factory=KvLengths)
    load: ExpertLoad = field(default_factory=ExpertLoad)
    placement: Placement = field(default_factory=Placement)
    jitter: Jitter = field(default_factory=Jitter)

    @property
    def has_skew(self) -> bool:
        """Whether dies differ at all."""
        return (
            self.load.kind != "balanced"
            or self.jitter.matmul > 0.0
            or self.jitter.other > 0.0
            or self.kv.low is not None
            or self.kv.file is not None
        )

    def check(self) -> None:
        """Refuse what cannot be.

        Raises:
            InputError: names the key.
        """
        self.kv.check()
        self.load.check()
        self.placement.check()
        self.jitter.check()
        if self.load.kind == "balanced" and self.placement.kind != "contiguous":
            allowed = "contiguous with load.kind=balanced: experts that get equal loads are alike"
            raise InputError("placement.kind", self.placement.kind, allowed)
