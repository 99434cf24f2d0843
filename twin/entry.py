"""One schedule's row in a result file: the keys that search and simulate share."""

from __future__ import annotations

from twin.evaluate import Evaluation
from twin.memory import MemoryLedger
from twin.schedule import Schedule

GIB = 1024**3


def entry_of(name: str, evaluation: Evaluation, schedule_path: str) -> dict[str, object]:
    """The entry of an evaluated schedule.

    ``step_ms`` is one step; a decode step's ``tpot_ms`` is the time per accepted token, a
    prefill step's ``ttft_ms`` the time to the first.  ``interval`` is the 80% interval of
    either in ms (what the fit left over is in it) and ``median_ms`` the median of the same draws,
    or null where none were asked for.  ``evidence`` is the weakest among the parameters that move
    the latency, ``extrapolated`` the kinds of op with shapes outside of the fitted ones.
    ``hbm_gib`` holds a role's ledger on one die.  ``time_by_kind`` adds up the main stream of one
    attention die, in ms by op kind.
    """
    interval = evaluation.interval_us
    return {
        "name": name,
        "schedule": schedule_path,
        "step_ms": evaluation.step_us / 1e3,
        latency_key(evaluation.schedule): evaluation.latency_us / 1e3,
        "tokens_per_s_per_die": float(evaluation.tokens_per_s_per_die),
        "tokens_per_s_per_chip": float(evaluation.tokens_per_s_per_chip),
        "hbm_gib": {role: ledger_gib(ledger) for role, ledger in evaluation.memory.items()},
        "interval": None if interval is None else [interval[0] / 1e3, interval[1] / 1e3],
        "median_ms": None if evaluation.median_us is None else evaluation.median_us / 1e3,
        "evidence": evaluation.evidence,
        "extrapolated": list(evaluation.extrapolated),
        "active_experts": float(evaluation.active_experts),
        "layer_us": evaluation.layer_us,
        "time_by_kind": {kind: us / 1e3 for kind, us in evaluation.time_by_kind.items()},
    }


def latency_key(schedule: Schedule) -> str:
    """The key of an entry's latency: ``tpot_ms`` in decode, ``ttft_ms`` in prefill."""
    return f"{schedule.workload.latency_name.lower()}_ms"


def ledger_gib(ledger: MemoryLedger) -> dict[str, float]:
    """A memory ledger in GiB; ``buffers`` are those of collectives and of the graph."""
    parts = {
        "weights": ledger.weights_bytes,
        "kv": ledger.kv_bytes,
        "activations": ledger.activation_bytes,
        "buffers": ledger.hccl_bytes + ledger.graph_bytes,
        "total": ledger.total_bytes,
        "capacity": ledger.capacity_bytes,
    }
    return {name: size / GIB for name, size in parts.items()}
