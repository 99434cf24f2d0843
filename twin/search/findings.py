"""What an answer says beyond its ranking, as the keys of ``result.json``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hardware_models.hardware import Hardware
from twin.evaluate import evaluate
from twin.search.contention import ContentionCheck
from twin.search.explain import Explanation
from twin.search.robust import Ranked
from twin.search.space import Space
from twin.serving import latency_lines


@dataclass(frozen=True)
class Naming:
    """The names that candidates have in a result, and the key of their latency in ms."""

    space: Space
    best: int

    def __call__(self, index: int) -> str:
        """``best`` or ``candidate N``."""
        return "best" if index == self.best else f"candidate {index}"

    def knobs_changed(self, index: int) -> dict[str, object]:
        """The knobs of a candidate that are not as in the best."""
        best = self.space.choice(self.best)
        return {name: at for name, at in self.space.choice(index).items() if at != best[name]}


def contention_keys(check: ContentionCheck, tolerance: float) -> dict[str, object]:
    """Whether contention decides: ``winner_changes``, and what would win without it."""
    return {
        "winner_changes": check.changes,
        "tolerance": tolerance,
        "winner_without_ms": check.winner_alone_us / 1e3,
        "without": {
            "knobs": dict(check.choice),
            "latency_ms": check.alone_us / 1e3,
            "with_contention_ms": check.contended_us / 1e3,
        },
        "proven": check.proven,
    }


def robustness_keys(ranked: Sequence[Ranked], naming: Naming, considered: int) -> dict[str, object]:
    """The ties by their slow end, the most robust first, out of ``considered``."""
    with_skew = bool(ranked) and ranked[0].skew is not None
    return {
        "over": "parameter draws and skew" if with_skew else "parameter draws",
        "considered": considered,
        "ranked": [
            {"name": naming(each.index), "p90_ms": each.p90_us / 1e3, "skew": each.skew}
            for each in ranked
        ],
    }


def latency_keys(space: Space, index: int) -> dict[str, object]:
    """A candidate's latency by who counts it, in ms; a prefill step accepts no tokens."""
    schedule = space.schedule(index)
    step_us = evaluate(schedule, space.model, space.hardware).step_us
    lines = latency_lines(schedule, space.model, space.hardware, step_us)
    low, high = lines.served_range_us
    is_prefill = schedule.workload.is_prefill
    return {
        "step_ms": lines.step_us / 1e3,
        "per_accepted_token_ms": None if is_prefill else lines.accepted_us / 1e3,
        "serving_benchmark_ms": lines.served_us / 1e3,
        "serving_benchmark_range_ms": [low / 1e3, high / 1e3],
        "host_gap_ms": lines.host_gap_us / 1e3,
        "sequences": lines.sequences,
        "padded_sequences": lines.padded_sequences,
    }


def explain_keys(found: Explanation, naming: Naming, hardware: Hardware) -> dict[str, object]:
    """What decisions are worth, what bounds, what tells ties apart, what changes the winner."""
    return {
        "decisions": [
            {"knob": each.knob, "level": each.level, "infeasible": each.why}
            if each.costs_us is None
            else {"knob": each.knob, "level": each.level, "costs_ms": each.costs_us / 1e3}
            for each in found.worth
        ],
        "bounds": {role: dict(shares) for role, shares in found.bounds.items()},
        "deciding_measurements": [
            {
                **_parameter(hardware, each.parameter),
                "kinds": list(each.kinds),
                "between": ["best", naming(each.other)],
                "moves_ms": each.moves_us / 1e3,
                "decides": each.decides,
            }
            for each in found.deciders
        ],
        "would_change_the_winner": [
            {
                **_parameter(hardware, each.parameter),
                "at": each.value,
                "end": each.end,
                "winner": naming(each.winner),
                "knobs_changed": naming.knobs_changed(each.winner),
                "gain": each.gain,
            }
            for each in found.upsets
        ],
        "challengers": [naming.knobs_changed(index) for index in found.challengers],
    }


def _parameter(hardware: Hardware, name: str) -> Mapping[str, object]:
    it = hardware.parameter(name)
    return {
        "parameter": name,
        "unit": it.unit,
        "range": [it.low, it.high],
        "evidence": it.evidence,
    }
