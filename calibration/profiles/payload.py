"""A diagnosis as the keys of result.json, from which tables and the page are made."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Any

from calibration.profiles.delta import Delta
from calibration.profiles.diagnosis import Diagnosis, StepTime
from calibration.profiles.event_waits import WaitCause
from calibration.profiles.findings import Finding
from calibration.profiles.kind_time import KindTime

Row = dict[str, Any]

_RATIOS = ("aic_mac_ratio", "aic_mte2_ratio", "aiv_vec_ratio", "aiv_mte2_ratio", "aiv_mte3_ratio")
_BUSY = 0.5


def diagnosis_payload(
    found: Diagnosis, said: Sequence[Finding], waits: Sequence[WaitCause], delta: Delta | None
) -> Row:
    """Everything that the command says; times in us, shares and ratios 0..1."""
    whole = found.total_us or 1.0
    return {
        "simulated": found.simulated,
        "step_us": found.mean_step_us,
        "kernel_us": found.total_us,
        "shares": {
            "computing": found.share(lambda step: step.computing_us),
            "communication": found.share(lambda step: step.communication_us),
            "exposed_communication": found.share(lambda step: step.exposed_us),
            "free": found.share(lambda step: step.free_us),
        },
        "kinds": [_kind_row(kind, whole) for kind in found.kinds.values()],
        "findings": [_finding_row(finding) for finding in said],
        "steps": [{**asdict(step), "free_us": step.free_us} for step in found.steps],
        "imbalance": imbalance(found.steps),
        "event_waits": [asdict(cause) for cause in waits],
        "launch_gaps": [asdict(row) for row in found.gaps],
        "unmapped": [asdict(row) for row in found.unmapped],
        "skipped": [asdict(row) for row in found.skipped],
        "against": None if delta is None else _delta_row(delta),
    }


def _kind_row(kind: KindTime, whole_us: float) -> Row:
    twin = kind.twin_us / kind.modelled_us if kind.modelled_us else None
    return {
        "kind": kind.kind,
        "count": kind.count,
        "total_us": kind.total_us,
        "share": kind.total_us / whole_us,
        "tflops": kind.tflops or None,
        "gbps": kind.gbps or None,
        "of_roofline": kind.of_roofline,
        "cube_utilisation": kind.cube_utilisation,
        "l2_hit_rate": kind.counter("l2_hit_rate"),
        "twin_over_profile": twin,
        "pipes": {name: kind.counter(name) for name in _RATIOS},
        "bound": bound(kind),
    }


def bound(kind: KindTime) -> str:
    """What held a kind up, by its recorded pipes: the cube, the memory, or neither.

    A pipe that was busy for most of the time bounds the kernel; where none was, the pipeline
    stalled.  Empty where no pipes were recorded.
    """
    shares = {name: kind.counter(name) for name in _RATIOS}
    known = {name: value for name, value in shares.items() if value}
    if not known:
        return ""
    name, value = max(known.items(), key=lambda item: item[1])
    if value < _BUSY:
        return "stall"
    return {"aic_mac_ratio": "cube", "aiv_vec_ratio": "vector"}.get(name, "memory")


def _finding_row(finding: Finding) -> Row:
    trials = [{**asdict(trial), "change": trial.change} for trial in finding.trials]
    return {**asdict(finding), "trials": trials}


def imbalance(steps: Iterable[StepTime]) -> list[Row]:
    """For every step on several ranks: the rank that computes longest, and by how much."""
    by_step: dict[str, list[StepTime]] = {}
    for step in steps:
        by_step.setdefault(step.step, []).append(step)
    rows = []
    for name, ranks in by_step.items():
        if len(ranks) > 1:
            slowest = max(ranks, key=lambda step: step.computing_us)
            mean = fmean(step.computing_us for step in ranks)
            rows.append(
                {
                    "step": name,
                    "ranks": len(ranks),
                    "slowest_rank": slowest.rank,
                    "computing_us": slowest.computing_us,
                    "over_mean": slowest.computing_us / mean if mean else 1.0,
                }
            )
    return rows


def _delta_row(delta: Delta) -> Row:
    return {
        "base_step_us": delta.base_step_us,
        "step_us": delta.step_us,
        "change": delta.change,
        "types": [{**asdict(row), "change_us": row.change_us} for row in delta.types],
        "kinds": [{**asdict(row), "change_us": row.change_us} for row in delta.kinds],
    }
