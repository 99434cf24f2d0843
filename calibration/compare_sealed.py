"""``python -m calibration.compare sealed=FILE``: a sealed prediction against a measurement.

The measurement is a time given as ``measured.step_ms``, ``measured.tpot_ms`` or
``measured.ttft_ms``, or a profile: run folders of ``runtime_npu.run profile=true`` that ran the
sealed schedule, or an Ascend profiler's files whose kernels are that schedule's.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from calibration.profiles.collectives import collectives_of
from calibration.profiles.diagnosis import diagnose
from calibration.profiles.folder import find_ranks
from calibration.profiles.mapping import Context
from calibration.profiles.measured import has_runs, read_runs
from calibration.profiles.profile import RankProfile
from calibration.profiles.same_step import launches_that_differ
from calibration.profiles.shown import shown
from hardware_models.errors import InputError
from twin.graph.build import build_step_graph
from twin.models import load_model
from twin.report.table import console
from twin.results import write_result
from twin.schedule import Schedule
from twin.schema import dump_dataclass
from twin.sealed import Sealed, read_sealed


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a clock said, in ms; one of them at most, ``None`` elsewhere."""

    step_ms: float | None
    tpot_ms: float | None
    ttft_ms: float | None

    def given(self) -> dict[str, float]:
        """Those that are given.

        Raises:
            InputError: one is no time above 0.
        """
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        found = {name: value for name, value in values.items() if value is not None}
        for name, value in found.items():
            if not 0 < value < float("inf"):
                raise InputError(f"measured.{name}", value, "a time above 0 in ms")
        return found


@dataclass(frozen=True, slots=True)
class Verdict:
    """One measurement beside the sealed prediction; ``error`` is predicted over measured, less 1.

    ``measured_ms`` is of the kind that the seal's interval is of.
    """

    source: str
    measured_ms: float
    error: float
    inside: bool


def compare_sealed(
    path: Path,
    known_hash: str | None,
    measured: Measured,
    profiles: str | None,
    seed: int,
    folder: Path,
) -> list[Verdict]:
    """Hold every measurement against the sealed file, print and write result.json.

    Raises:
        InputError: the file was altered, or the measurement is missing, wrong or of another
            schedule.
    """
    sealed = read_sealed(path, known_hash)
    kind = f"{sealed.schedule.workload.latency_name.lower()}_ms"
    times = measured.given()
    if len(times) + (profiles is not None) != 1:
        given = [*(f"measured.{name}" for name in times), *(["profiles"] if profiles else [])]
        allowed = f"one of measured.step_ms, measured.{kind} and profiles=DIR"
        raise InputError("measured", given, allowed)
    found = _profiled(sealed, Path(profiles)) if profiles else _timed(sealed, kind, times)
    verdicts = [_verdict(sealed, source, us) for source, us in found.items()]
    payload = {
        "hash": sealed.hash,
        "sealed_at": sealed.sealed_at,
        "of": kind,
        "predicted_ms": sealed.latency_us / 1e3,
        "interval": [sealed.low_us / 1e3, sealed.high_us / 1e3],
        "rows": [asdict(verdict) for verdict in verdicts],
        "inside": all(verdict.inside for verdict in verdicts),
    }
    write_result(folder, "calibration.compare", seed, payload)
    _print(sealed, verdicts)
    return verdicts


def _timed(sealed: Sealed, kind: str, times: Mapping[str, float]) -> dict[str, float]:
    ((name, ms),) = times.items()
    if name not in ("step_ms", kind):
        raise InputError(f"measured.{name}", ms, f"null: the sealed prediction is of {kind}")
    per_step = _per_step(sealed) if name == "step_ms" else 1.0
    return {f"measured.{name}": ms * 1e3 / per_step}


def _profiled(sealed: Sealed, path: Path) -> dict[str, float]:
    """Latency in us of each profile, by its name."""
    if has_runs(path):
        runs = read_runs(path)
        differences = {run.name: _differences(run.schedule, sealed.schedule) for run in runs}
        fitting = [run for run in runs if not differences[run.name]]
        if not fitting:
            name, least = min(differences.items(), key=lambda item: (len(item[1]), item[0]))
            allowed = f"a run of the sealed schedule; {shown(name)} differs in {', '.join(least)}"
            raise InputError("profiles", str(path), allowed)
        return {run.name: run.step_us / _per_step(sealed) for run in fitting}
    files = find_ranks(path)
    schedule = sealed.schedule
    collectives = collectives_of(files)
    context = Context(schedule.workload.kv_tokens, 0, collectives.dies, collectives.moved_mb)
    steps: dict[str, float] = {}
    graph = build_step_graph(schedule, load_model(schedule.model), sealed.hardware)

    def on_rank(rank: RankProfile) -> None:
        if unlike := launches_that_differ(rank, graph):
            allowed = (
                "a profile of the sealed schedule; launches a step (in brackets: the sealed "
                f"one's) of rank {rank.rank}: {', '.join(unlike)}"
            )
            raise InputError("profiles", str(path), allowed)

    found = diagnose(files, context, sealed.hardware, on_rank)
    for step in found.steps:
        steps[step.step] = max(step.total_us, steps.get(step.step, 0.0))
    if not steps:
        raise InputError("profiles", str(path), "a profile with at least one step")
    source = f"{path.name} (simulated: no measurement)" if found.simulated else path.name
    return {source: statistics.median(steps.values()) / _per_step(sealed)}


def _differences(ran: Schedule, sealed: Schedule) -> list[str]:
    """Fields in which schedules differ, but for the die and for another name of the same model."""
    one, other = dump_dataclass(ran), dump_dataclass(sealed)
    found = []
    for name in sorted({*one, *other}):
        a, b = one.get(name), other.get(name)
        if name == "model":
            ours = load_model(sealed.model)
            same = replace(load_model(ran.model), name=ours.name) == ours
            found += [] if same else [name]
        elif isinstance(a, dict) and isinstance(b, dict):
            inner = sorted(key for key in {*a, *b} if a.get(key) != b.get(key))
            found += [f"{name}.{key}" for key in inner if (name, key) != ("deployment", "hardware")]
        elif a != b:
            found.append(name)
    return found


def _per_step(sealed: Sealed) -> float:
    """Steps' time over the latency that schedules are compared by."""
    return sealed.step_us / sealed.latency_us


def _verdict(sealed: Sealed, source: str, measured_us: float) -> Verdict:
    return Verdict(
        source=source,
        measured_ms=measured_us / 1e3,
        error=sealed.latency_us / measured_us - 1,
        inside=sealed.low_us <= measured_us <= sealed.high_us,
    )


def _print(sealed: Sealed, verdicts: list[Verdict]) -> None:
    out = console()
    name = sealed.schedule.workload.latency_name
    out.print(
        f"sealed {sealed.sealed_at}: {name} {sealed.latency_us / 1e3:.3f} ms, "
        f"80% interval {sealed.low_us / 1e3:.3f} .. {sealed.high_us / 1e3:.3f}; "
        f"hash {sealed.hash}: as it was sealed"
    )
    for verdict in verdicts:
        where = "inside the interval" if verdict.inside else "OUTSIDE the interval"
        out.print(
            f"{shown(verdict.source)}: {name} {verdict.measured_ms:.3f} ms measured, {where}; "
            f"the prediction is off by {verdict.error:+.1%}"
        )
