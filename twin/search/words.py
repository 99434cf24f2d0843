"""An answer's findings in sentences, the same on the terminal and in the report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from twin.report.table import latency_of, level_text

_SHOWN = 3
_NOTHING_MS = 0.0005
# Shares are printed with one decimal of a percent: less would be printed as nothing.
_NOTHING = 0.0005


def answer_lines(payload: Mapping[str, Any]) -> list[str]:
    """What comes first: whether contention decides, three latencies, the most robust tie.

    Before them, where it is so, that the search found nothing better than its base.
    """
    base = ["the base schedule is already the best of this space"]
    lines = [contention_line(payload), latency_line(payload), robust_line(payload)]
    return [*(base if payload["best_is_base"] else []), *lines]


def contention_line(payload: Mapping[str, Any]) -> str:
    """Whether the same schedule would win if ops shared nothing."""
    check, best = payload["contention"], payload["best"]
    latency, best_ms = latency_of(best)
    without = check["without"]
    changed = _unlike(best, without)
    if not changed:
        return "without contention the same schedule would win: sharing does not decide"
    if not check["winner_changes"]:
        return (
            f"without contention {_levels(changed)} would win, which ties with the best: "
            "sharing does not decide"
        )
    slower = without["with_contention_ms"] / best_ms - 1
    return (
        f"CONTENTION DECIDES: without it {_levels(changed)} would win "
        f"({latency} {without['latency_ms']:.3f} ms), "
        f"which is {slower:.2%} slower than the best once ops share the die"
    )


def latency_line(payload: Mapping[str, Any]) -> str:
    """The latency of the best by who counts it."""
    lines = payload["latency"]["best"]
    low, high = lines["serving_benchmark_range_ms"]
    padded = (
        f", batch {lines['sequences']} padded to {lines['padded_sequences']} a group"
        if lines["padded_sequences"] != lines["sequences"]
        else ""
    )
    accepted_ms = lines["per_accepted_token_ms"]
    accepted = "" if accepted_ms is None else f"per accepted token {accepted_ms:.3f} ms; "
    return (
        f"latency of the best: step {lines['step_ms']:.2f} ms; {accepted}"
        f"as a serving benchmark reports it {lines['serving_benchmark_ms']:.3f} ms "
        f"({low:.2f} .. {high:.2f}; host gap {lines['host_gap_ms']:.2f} ms a step{padded})"
    )


def robust_line(payload: Mapping[str, Any]) -> str:
    """Which tie is recommended, and why."""
    name = payload["recommended"]["name"]
    robustness = payload["robustness"]
    if robustness is None:
        return "recommended: the best (draws=0, so ties are not ranked by robustness)"
    ranked = robustness["ranked"]
    slow_ms = {each["name"]: each["p90_ms"] for each in ranked}
    against = f", the best {slow_ms['best']:.3f} ms" if "best" in slow_ms and name != "best" else ""
    return (
        f"recommended: {name} ({payload['recommended']['schedule']}), the most robust of "
        f"{robustness['considered']} ties: p90 over {robustness['over']} "
        f"{slow_ms[name]:.3f} ms{against}"
    )


def tie_lines(payload: Mapping[str, Any]) -> Iterator[str]:
    """In which knobs each listed tie differs from the best; the recommended one says so."""
    best, recommended = payload["best"], payload["recommended"]["name"]
    for tie in payload["tie_set"]:
        if tie["name"] != best["name"]:
            name = tie["name"] + (", recommended" if tie["name"] == recommended else "")
            yield f"{name}, unlike the best: {_levels(_unlike(best, tie))}"


def outside_lines(baselines: Sequence[Mapping[str, Any]], best: Mapping[str, Any]) -> Iterator[str]:
    """Which baselines beyond the space are faster than its best, and by how much."""
    _, best_ms = latency_of(best)
    for baseline in baselines:
        gain = 1 - latency_of(baseline)[1] / best_ms
        if gain >= _NOTHING:
            yield f"outside this space, baseline {baseline['name']} is {gain:.1%} faster"


def explain_lines(payload: Mapping[str, Any]) -> Iterator[str]:
    """What decisions are worth, what bounds, what would settle or change the answer."""
    found = payload["explain"]
    yield _worth(found["decisions"])
    for role, shares in found["bounds"].items():
        parts = ", ".join(f"{name} {share:.0%}" for name, share in list(shares.items())[:5])
        yield f"main stream of one {role} die: {parts}"
    for each in found["deciding_measurements"][:_SHOWN]:
        verb = "decides" if each["decides"] else "moves the distance"
        of = f" of {', '.join(each['kinds'])}" if each["kinds"] else ""
        yield (
            f"measure {each['parameter']}{of}: {verb} between best and {each['between'][1]} "
            f"by {each['moves_ms']:.3f} ms"
        )
    if not found["would_change_the_winner"]:
        yield "no parameter alone, within its range, makes another candidate win beyond a tie"
    for each in found["would_change_the_winner"][:_SHOWN]:
        yield (
            f"with {each['parameter']} at {each['at']:g} {each['unit']} "
            f"{_levels(each['knobs_changed'])} wins by {each['gain']:.1%}"
        )


def _worth(decisions: Sequence[Mapping[str, Any]]) -> str:
    parts, idle = [], []
    for each in decisions:
        named = f"{each['knob']} {level_text(each['level'])}"
        if "costs_ms" not in each:
            parts.append(f"{named} cannot be put back")
        elif abs(each["costs_ms"]) < _NOTHING_MS:
            idle.append(named)
        else:
            parts.append(f"{named} {each['costs_ms']:+.3f} ms")
    nothing = [f"nothing: {', '.join(idle)}"] if idle else []
    return f"worth of each decision (put back to the base, it costs): {'; '.join(parts + nothing)}"


def _unlike(best: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """The knobs of ``other`` that are not as in ``best``."""
    return {k: v for k, v in other["knobs"].items() if best["knobs"].get(k) != v}


def _levels(knobs: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {level_text(level)}" for name, level in knobs.items())
