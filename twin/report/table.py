"""Tables for the terminal."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from twin.choices import Level

# Wide enough for every column when the output goes to a file or a pipe.
_PLAIN_WIDTH = 210
_KINDS_SHOWN = 3
_LEDGER = "HBM GiB: weights + KV + activations + buffers"


def console() -> Console:
    """A console as wide as the terminal, or wide enough for the tables without one."""
    terminal = Console()
    return terminal if terminal.is_terminal else Console(width=_PLAIN_WIDTH)


def entries_table(title: str, entries: Sequence[Mapping[str, Any]]) -> Table:
    """Result entries side by side; differences are to the first one's latency."""
    table = Table(title=title)
    latency = latency_of(entries[0])[0] if entries else "latency"
    columns = (
        "schedule", "step ms", f"{latency} ms", "80% interval (median)", "evidence", "vs best",
        "tok/s/die", "tok/s/chip", "experts", _LEDGER, "where the time goes",
    )  # fmt: skip
    for name in columns:
        left = name in ("schedule", "where the time goes", _LEDGER)
        table.add_column(name, justify="left" if left else "right")
    best = latency_of(entries[0])[1] if entries else 1.0
    for entry in entries:
        interval, latency_ms = entry["interval"], latency_of(entry)[1]
        table.add_row(
            str(entry["name"]),
            f"{entry['step_ms']:.2f}",
            f"{latency_ms:.3f}",
            f"{interval[0]:.2f} .. {interval[1]:.2f} ({entry['median_ms']:.2f})"
            if interval
            else "-",
            evidence_text(entry),
            f"{latency_ms / best - 1:+.1%}",
            f"{entry['tokens_per_s_per_die']:.1f}",
            f"{entry['tokens_per_s_per_chip']:.1f}",
            f"{entry['active_experts']:.3g}",
            memory_text(entry["hbm_gib"]),
            time_text(entry["time_by_kind"]),
        )
    return table


def evidence_text(entry: Mapping[str, Any]) -> str:
    """The evidence of an entry, and which kinds of op lie outside of the fitted shapes."""
    kinds = entry["extrapolated"]
    shown = ", ".join(kinds[:_KINDS_SHOWN]) + (" ..." if len(kinds) > _KINDS_SHOWN else "")
    return f"{entry['evidence']}; extrapolated: {shown}" if kinds else str(entry["evidence"])


def latency_of(entry: Mapping[str, Any]) -> tuple[str, float]:
    """What an entry is compared by, and its ms: TPOT of a decode step, TTFT of a prefill step."""
    name = "TTFT" if "ttft_ms" in entry else "TPOT"
    return name, float(entry[f"{name.lower()}_ms"])


def level_text(level: Level) -> str:
    """A knob's level: a number or a name."""
    return level if isinstance(level, str) else f"{level:g}"


def knobs_text(levels: Mapping[str, Sequence[Level]]) -> str:
    """Knobs with their levels on one line."""
    return "; ".join(
        f"{name} {', '.join(level_text(level) for level in values)}"
        for name, values in levels.items()
    )


def memory_text(hbm_gib: Mapping[str, Mapping[str, float]]) -> str:
    """One line a role: weights + KV + activations + buffers = total of capacity, in GiB."""
    lines = []
    for role, ledger in hbm_gib.items():
        parts = [f"{ledger[name]:.1f}" for name in ("weights", "kv", "activations", "buffers")]
        total = f"{ledger['total']:.1f} of {ledger['capacity']:.0f}"
        lines.append(f"{role} {' + '.join(parts)} = {total}")
    return "\n".join(lines)


def time_text(time_by_kind: Mapping[str, float]) -> str:
    """The largest shares of the main stream's time."""
    total = sum(time_by_kind.values()) or 1.0
    largest = sorted(time_by_kind.items(), key=lambda item: -item[1])[:_KINDS_SHOWN]
    return ", ".join(f"{kind} {time / total:.0%}" for kind, time in largest)


def clipped_text(clipped: Sequence[tuple[str, int, int]]) -> str:
    """One sentence on prefetches (weight, asked bytes, given bytes), like weights together."""
    like = Counter(
        (re.sub(r"^layer\.\d+\.", "", weight), asked, given) for weight, asked, given in clipped
    )
    parts = (
        f"{weight} {asked:,} -> {given:,} bytes (in {count} layers)"
        if count > 1
        else f"{weight} {asked:,} -> {given:,} bytes"
        for (weight, asked, given), count in like.items()
    )
    return f"Prefetches clipped to the size of their weight: {'; '.join(parts)}."


def kinds_table(time_by_kind: Mapping[str, float]) -> Table:
    """Time of the main stream of one attention die by op kind."""
    table = Table(title="Main stream of one attention die, by op kind")
    for name in ("kind", "ms", "share"):
        table.add_column(name, justify="left" if name == "kind" else "right")
    total = sum(time_by_kind.values()) or 1.0
    for kind, time in sorted(time_by_kind.items(), key=lambda item: -item[1]):
        table.add_row(kind, f"{time:.3f}", f"{time / total:.1%}")
    return table
