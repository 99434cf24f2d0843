"""Capacity: the most sequences that so many nodes serve within a limit of the TPOT."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from twin.plan.config import Layout
from twin.plan.largest_batch import TPOT, Capacity, CapacitySearch, largest, parts_of
from twin.plan.outcome import Outcome
from twin.plan.setting import Confirmed, Setting
from twin.report.chart import Chart, Series, Value, line_chart
from twin.validate.deployment import EP_RANGE

_VOCABULARY = ("lm_head_tp", "embed_tp")
"""Sizes outside the layers, which few nodes may have to make smaller."""


@dataclass(frozen=True)
class _Row:
    """One number of nodes and layout."""

    nodes: int
    layout: Layout
    found: Capacity

    @property
    def name(self) -> str:
        """Name of its schedule's file."""
        return f"capacity-{self.nodes}-nodes-{self.layout}"


def run_capacity(setting: Setting) -> Outcome:
    """The capacity of every number of nodes and layout of the configuration."""
    limit_us = setting.config.slo.tpot_ms * 1e3
    asked = setting.config.deployment
    free = tuple(name for name in _VOCABULARY if getattr(asked, name) is None)
    search = CapacitySearch(limit_us, free)
    rows = _searched(setting, search)
    best = {row.name: row.found.best for row in rows if row.found.best is not None}
    confirmed = setting.confirmed(best)
    listed = [_listed(setting, row, confirmed.get(row.name), limit_us) for row in rows]
    nothing = None if best else _nothing(setting, search, rows)
    price = setting.config.price_per_die_hour
    columns = [
        "nodes", "dies", "layout", "sequences", "per die", "TPOT ms (80%)", "draws within",
        "tok/s/die", *([] if price is None else ["cost of 1M tokens"]), "stops the next",
    ]  # fmt: skip
    return Outcome(
        payload={
            "limit_tpot_ms": setting.config.slo.tpot_ms,
            "price_per_die_hour": price,
            "rows": listed,
        },
        title=f"Most sequences within a TPOT of {setting.config.slo.tpot_ms:g} ms",
        lines=_lines(listed),
        columns=columns,
        cells=[_cells(row, price is not None) for row in listed],
        charts=_charts(setting, listed),
        nothing=nothing,
    )


def _nothing(setting: Setting, search: CapacitySearch, rows: Sequence[_Row]) -> str:
    """What the nearest row fails on, and the nearest change that helps."""
    config, found = setting.config, largest([row.found for row in rows])
    if found.binds.reason == TPOT:
        enough_ms = math.ceil(config.slo.tpot_ms * (1 + found.binds.excess) * 1e3) / 1e3
        return f"{found.binds.detail}; nearest feasible change: slo.tpot_ms={enough_ms}"
    layout = next(row.layout for row in rows if row.found is found)
    space = setting.spaces[layout]
    most = EP_RANGE[1] * len(space.base.deployment.roles) // config.dies_per_node
    for nodes in range(max(config.nodes) + 1, most + 1):
        parts = parts_of(replace(space, dies=(nodes * config.dies_per_node,)))
        if any(search.of(part).best is not None for part in parts):
            return f"{found.binds.detail}; nearest feasible change: nodes=[{nodes}]"
    return f"{found.binds.detail}; no number of nodes helps"


def cost_per_million(price_per_die_hour: float, tokens_per_s_per_die: float) -> float:
    """Price of a million tokens, in the currency of the price of a die for an hour."""
    return price_per_die_hour / 3600 / tokens_per_s_per_die * 1e6


def _searched(setting: Setting, search: CapacitySearch) -> list[_Row]:
    config = setting.config
    asked = [(nodes, layout) for nodes in config.nodes for layout in config.layouts]
    parts = [
        (at, part)
        for at, (nodes, layout) in enumerate(asked)
        for part in parts_of(replace(setting.spaces[layout], dies=(nodes * config.dies_per_node,)))
    ]
    found = setting.map("searching", search.of, [part for _, part in parts])
    return [
        _Row(
            nodes,
            layout,
            largest([it for (of, _), it in zip(parts, found, strict=True) if of == at]),
        )
        for at, (nodes, layout) in enumerate(asked)
    ]


def _listed(
    setting: Setting, row: _Row, confirmed: Confirmed | None, limit_us: float
) -> dict[str, Any]:
    """A row of the result; without a schedule, only what stops the smallest batch."""
    dies = row.nodes * setting.config.dies_per_node
    stops = {
        "constraint": row.found.binds.reason,
        "detail": row.found.binds.detail,
        "excess": row.found.binds.excess,
        "sequences": row.found.next_batch,
    }
    listed: dict[str, Any] = {
        "nodes": row.nodes,
        "dies": dies,
        "layout": row.layout,
        "sequences": row.found.batch,
        "sequences_per_die": row.found.batch / dies,
        "sizes_taken": dict(row.found.sizes),
        "stops_the_next": stops,
    }
    if confirmed is None:
        return listed
    any_entry: Mapping[str, Any] = confirmed.entry
    price, rate = setting.config.price_per_die_hour, any_entry["tokens_per_s_per_die"]
    ledgers = any_entry["hbm_gib"].values()
    return {
        **listed,
        "left": {
            "tpot_ms": setting.config.slo.tpot_ms - any_entry["tpot_ms"],
            "hbm_gib": min(each["capacity"] - each["total"] for each in ledgers),
        },
        "share_of_draws_within": float(np.mean(confirmed.latency_us[1:] <= limit_us)),
        "cost_per_million_tokens": None if price is None else cost_per_million(price, rate),
        "best": any_entry,
    }


def _lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    taken = [
        f"{row['nodes']} node(s), {row['layout']}: {name}={size}, as the base's does not divide "
        "the dies of attention"
        for row in rows
        for name, size in row["sizes_taken"].items()
    ]
    running = [row for row in rows if "best" in row]
    if not running:
        return taken
    most = max(running, key=lambda row: row["best"]["tokens_per_s_per_die"])
    return [
        *taken,
        f"Most tokens per die: {most['nodes']} node(s), {most['layout']}, "
        f"{most['best']['tokens_per_s_per_die']:.1f} tokens/s per die with "
        f"{most['sequences_per_die']:g} sequences per die.",
        "Each row's schedule is the fastest of its space at that batch; one more sequence per "
        "attention group is stopped by what the last column says.",
    ]


def _cells(row: Mapping[str, Any], with_cost: bool) -> list[str]:
    head = [str(row["nodes"]), str(row["dies"]), row["layout"], str(row["sequences"])]
    stops = row["stops_the_next"]["detail"]
    if "best" not in row:
        return [*head, "0", *["-"] * (4 if with_cost else 3), stops]
    best = row["best"]
    low, high = best["interval"]
    return [
        *head,
        f"{row['sequences_per_die']:g}",
        f"{best['tpot_ms']:.2f} ({low:.2f} .. {high:.2f})",
        f"{row['share_of_draws_within']:.0%}",
        f"{best['tokens_per_s_per_die']:.1f}",
        *([f"{row['cost_per_million_tokens']:.4g}"] if with_cost else []),
        stops,
    ]


def _charts(setting: Setting, rows: Sequence[Mapping[str, Any]]) -> list[Chart]:
    def series(value: str | None) -> list[Series]:
        return [
            Series(
                layout,
                [
                    Value(
                        str(row["nodes"]),
                        row["sequences_per_die"]
                        if value is None
                        else row.get("best", {}).get(value, 0.0),
                    )
                    for row in rows
                    if row["layout"] == layout
                ],
            )
            for layout in setting.config.layouts
        ]

    charts = [
        line_chart("sequences per die", "nodes", series(None)),
        line_chart("tokens/s per die", "nodes", series("tokens_per_s_per_die")),
    ]
    return [chart for chart in charts if chart is not None]
