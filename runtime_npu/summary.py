"""What a run reports: on the terminal, in result.json and in timing.json."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
from rich.console import Console
from rich.table import Table

from runtime_npu.execute import RunResult
from runtime_npu.rank import Report
from runtime_npu.record import OpRecord
from twin.workload import Phase


def payload(result: RunResult) -> dict[str, object]:
    """The keys of result.json.

    ``acceptance`` is the mean of accepted drafts over all steps of all sequences, ``accepted``
    says how often 0, 1, ... were.
    ``ops`` is the record of one step of the schedule's phase on rank 0 (all decode steps are
    alike), ``ffn_ops`` that on the first FFN rank.
    """
    first, ffn = result.reports[0], _ffn_report(result)
    return {
        "prompt_ids": [list(tokens) for tokens in result.prompts.ids],
        "token_ids": [list(tokens) for tokens in first.token_ids],
        "texts": None if result.texts is None else list(result.texts),
        "acceptance": acceptance(first.accepted),
        "accepted": accepted_counts(first.accepted, result.job.schedule.workload.next_n),
        "ranks": len(result.reports),
        "ops": [dataclasses.asdict(record) for record in first.ops],
        "ffn_ops": [dataclasses.asdict(record) for record in (ffn.ops if ffn else ())],
        "differences": list(result.differences),
    }


def acceptance(accepted: Sequence[Sequence[int]]) -> float:
    """Mean accepted drafts per step and sequence; 0 where no step ran."""
    counts = [count for step in accepted for count in step]
    return sum(counts) / len(counts) if counts else 0.0


def accepted_counts(accepted: Sequence[Sequence[int]], next_n: int) -> list[int]:
    """How many steps of sequences accepted 0, 1, ... ``next_n`` drafts."""
    counts = [count for step in accepted for count in step]
    return [counts.count(number) for number in range(next_n + 1)]


def _ffn_report(result: RunResult) -> Report | None:
    return next((report for report in result.reports if report.place.role == "ffn"), None)


def rates(result: RunResult) -> dict[str, float]:
    """The times of timing.json in ms: ``step_ms`` is the median step, with its p99.

    ``tpot_ms`` is the time of all steps over the tokens that they gave a sequence, p50 and p99
    are over steps: a step's time over its new tokens per sequence (1 + accepted drafts).
    On NPUs ``forward_ms`` and ``forward_tpot_ms`` say the same of the passes alone, as the
    device measures them: what the host does between two passes is not in them.
    They are rank 0's: every rank waits for all at the end of a step.
    """
    first = result.reports[0]
    times = {"ttft_ms": first.prefill_s * 1e3}
    steps = np.array(first.step_s) * 1e3
    if len(steps):
        tokens = np.array([1.0 + acceptance([step]) for step in first.accepted])
        times["tpot_ms"] = float(steps.sum() / tokens.sum())
        over = {"tpot_ms": steps / tokens, "step_ms": steps}
        if first.forward_s:
            forward = np.array(first.forward_s) * 1e3
            times["forward_tpot_ms"] = float(forward.sum() / tokens.sum())
            over |= {"forward_tpot_ms": forward / tokens, "forward_ms": forward}
        for name, values in over.items():
            p50, p99 = np.percentile(values, (50, 99))
            times |= {f"{name}_p50": float(p50), f"{name}_p99": float(p99)}
        for name in ("step_ms", "forward_ms"):
            if name in over:
                times[name] = times.pop(f"{name}_p50")
    return times


def print_summary(result: RunResult) -> None:
    """Tokens, times, and the order of ops as issued: layer 0 and what lies outside layers."""
    console = Console(soft_wrap=True, highlight=False, emoji=False)
    tokens = Table("prompt", "tokens in", "new token ids", title="Generated")
    for index, new in enumerate(result.reports[0].token_ids):
        tokens.add_row(str(index), str(len(result.prompts.ids[index])), " ".join(map(str, new)))
    console.print(tokens)
    for index, text in enumerate(result.texts or ()):
        console.print(f"prompt {index}: {text!r}", markup=False)
    console.print("  ".join(f"{name} {ms:.2f}" for name, ms in rates(result).items()))
    next_n = result.job.schedule.workload.next_n
    if next_n:
        accepted = result.reports[0].accepted
        counts = accepted_counts(accepted, next_n)
        often = ", ".join(f"{number} in {count}" for number, count in enumerate(counts))
        console.print(f"acceptance {acceptance(accepted):.2f} of {next_n} drafts ({often} steps)")
    planned = result.job.schedule.workload.global_batch
    if planned != len(result.prompts.ids):
        console.print(f"{len(result.prompts.ids)} prompts; the schedule was made for {planned}")
    if not result.reports[0].ops:
        console.print("no decode step ran: there is no order of ops to compare")
        return
    ffn = _ffn_report(result)
    for report in (result.reports[0], *([ffn] if ffn else [])):
        console.print(_order(report, result.job.schedule.workload.phase))
    for difference in result.differences:
        console.print(f"differs: {difference}", markup=False)
    if not result.differences:
        ranks = "" if len(result.reports) == 1 else f" on all {len(result.reports)} ranks"
        console.print(f"issued as in the step graph{ranks}: no differences")


def _order(report: Report, phase: Phase) -> Table:
    step = "The prefill" if phase == "prefill" else "A decode step"
    title = f"{step} on {report.place.role} {report.place.number} (layer 0, outside)"
    table = Table("stream", "cores", "scope", "ops in issue order", title=title)
    for (stream, cores, scope), ops in _runs(report.ops).items():
        table.add_row(stream, cores, scope, ", ".join(ops))
    return table


def _runs(records: Sequence[OpRecord]) -> Mapping[tuple[str, str, str], list[str]]:
    """Local op names by stream, core limit and scope, other layers than the first left out."""
    runs: dict[tuple[str, str, str], list[str]] = {}
    for record in records:
        if record.name.startswith("layer.") and not record.name.startswith("layer.0."):
            continue
        cores = "all" if record.aic is None else f"c{record.aic}v{record.aiv}"
        if record.kind == "prefetch":
            cores = "none"
        local = record.name.removeprefix("layer.0.")
        if record.prefetch_bytes:
            local = f"{local.removeprefix('prefetch.')} ({record.prefetch_bytes} B)"
        if record.waits:
            local += f" (after {' '.join(w.removeprefix('layer.0.') for w in record.waits)})"
        scope = (record.scope or "").removeprefix("layer.0.")
        runs.setdefault((record.stream, cores, scope), []).append(local)
    return runs
