"""Tables of a diagnosis for the terminal; every name of a profile is made safe to show."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from rich.table import Table

from calibration.profiles.shown import shown
from twin.report.table import console

Payload = dict[str, Any]

ROWS_SHOWN = 12


def print_diagnosis(payload: Payload, title: str) -> None:
    """Print what the command found."""
    out = console()
    shares = payload["shares"]
    kind = "simulated" if payload["simulated"] else "measured"
    out.print(f"{title} ({kind}): step {payload['step_us'] / 1e3:.3f} ms")
    out.print(", ".join(f"{name.replace('_', ' ')} {share:.1%}" for name, share in shares.items()))
    out.print(_kinds(payload["kinds"]))
    for finding in payload["findings"]:
        _print_finding(finding)
    for name, columns in _LISTS.items():
        rows = _over_ranks(payload[name]) if name in _BY_RANK else payload[name]
        if rows:
            out.print(_list(name, rows, columns))
    for row in payload["skipped"]:
        where = shown(f"{row['path']}:{row['first_line']}", 200)
        out.print(f"skipped {row['count']}: {where}: {shown(row['reason'])}")
    if payload["against"]:
        delta = payload["against"]
        before, after = delta["base_step_us"] / 1e3, delta["step_us"] / 1e3
        out.print(f"step {before:.3f} -> {after:.3f} ms ({delta['change']:+.1%})")
        for key in ("kinds", "types"):
            out.print(_against(key, delta[key]))


_LISTS: dict[str, dict[str, str]] = {
    "imbalance": {
        "step": "", "ranks": "d", "slowest_rank": "d", "computing_us": ".1f", "over_mean": ".3f",
    },
    "event_waits": {
        "ranks": "", "stream": "", "cause": "", "by_rank": "", "count": ".4g", "total_us": ".1f",
    },
    "launch_gaps": {
        "ranks": "", "stream": "", "launches": ".4g", "total_us": ".1f", "median_us": ".2f",
    },
    "unmapped": {"type": "", "reason": "", "count": "d", "time_us": ".1f", "share": ".1%"},
}  # fmt: skip


_BY_RANK = ("event_waits", "launch_gaps")
"""Lists with a row a rank: alike rows of several ranks are shown as their mean."""


def _over_ranks(rows: Sequence[Payload]) -> list[Payload]:
    """Rows that differ in their rank and numbers alone as one: which ranks, and means of them."""
    groups: dict[tuple[object, ...], list[Payload]] = {}
    for row in rows:
        key = tuple(value for value in row.values() if isinstance(value, str))
        groups.setdefault((*key, row.get("by_rank")), []).append(row)
    found = []
    for own in groups.values():
        ranks = sorted(row["rank"] for row in own)
        means = {
            key: statistics.fmean(row[key] for row in own)
            for key, value in own[0].items()
            if isinstance(value, int | float) and key not in ("rank", "by_rank")
        }
        shown_ranks = str(ranks[0]) if len(own) == 1 else f"{len(own)}: {ranks[0]} .. {ranks[-1]}"
        found.append({**own[0], **means, "ranks": shown_ranks})
    return sorted(found, key=lambda row: -row["total_us"])


def _kinds(rows: Sequence[Payload]) -> Table:
    table = Table(title="Time by op kind")
    for name in ("kind", "launches", "ms", "share", "TFLOPS", "GB/s", "of roofline", "cube",
                 "L2 hits", "bound by", "twin / profile"):  # fmt: skip
        table.add_column(name, justify="left" if name in ("kind", "bound by") else "right")
    for row in rows:
        table.add_row(
            row["kind"],
            str(row["count"]),
            f"{row['total_us'] / 1e3:.3f}",
            f"{row['share']:.1%}",
            _number(row["tflops"], ".1f"),
            _number(row["gbps"], ".0f"),
            _number(row["of_roofline"], ".0%"),
            _number(row["cube_utilisation"], ".0%"),
            _number(row["l2_hit_rate"], ".0%"),
            row["bound"],
            _number(row["twin_over_profile"], ".2f"),
        )
    return table


def _print_finding(finding: Payload) -> None:
    out = console()
    value = _number(finding["value"], ".1%")
    out.print(f"{finding['name']}: {value} (threshold {finding['threshold']:.0%}): "
              f"{finding['state']}")  # fmt: skip
    if finding["state"] != "missed":
        return
    out.print(f"  {finding['advice']}")
    for trial in finding["trials"]:
        what = shown(trial["what"], 90)
        if trial["after_us"] is None:
            out.print(f"  twin: {what}: refused, {shown(trial['refused'], 200)}")
        else:
            out.print(f"  twin: {what}: {trial['before_us']:.1f} -> {trial['after_us']:.1f} us "
                      f"({trial['change']:+.1%})")  # fmt: skip


def _list(name: str, rows: Sequence[Payload], columns: dict[str, str]) -> Table:
    hidden = len(rows) - ROWS_SHOWN
    more = f" ({hidden} more lines in result.json)" if hidden > 0 else ""
    means = ", means over ranks that are alike" if name in _BY_RANK else ""
    table = Table(title=name.replace("_", " ") + means + more)
    for column in columns:
        table.add_column(column.replace("_", " "))
    for row in rows[:ROWS_SHOWN]:
        table.add_row(
            *(
                format(row[column], form) if form else shown(_text(row[column]))
                for column, form in columns.items()
            )
        )
    return table


def _text(value: object) -> str:
    return "-" if value is None else str(value)


def _against(key: str, rows: Sequence[Payload]) -> Table:
    name = "op kind" if key == "kinds" else "kernel type"
    table = Table(title=f"Largest differences by {name}, us a step and rank")
    for column in (name, "launches before", "after", "us before", "after", "change"):
        table.add_column(column, justify="left" if column == name else "right")
    for row in rows[:ROWS_SHOWN]:
        table.add_row(
            shown(row["type"]),
            *(f"{count:.4g}" for count in row["counts"]),
            *(f"{time:.1f}" for time in row["times_us"]),
            f"{row['change_us']:+.1f}",
        )
    return table


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
