"""torchair's configuration for each graph mode: what is compiled is what was scheduled."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from twin.deployment import GraphMode

_MODES: dict[GraphMode, str] = {"ge_graph": "max-autotune", "npugraph_ex": "npugraph_ex"}


def compiler_config(graph_mode: GraphMode) -> Any:
    """A ``torchair.CompilerConfig``.

    Fusions of norms with casts and quantisations stay off, as do concatenations made into
    copies: no step graph has them, and they come and go with the streams, so that two schedules
    would differ in more than they say.
    """
    config: Any = import_module("torchair").CompilerConfig()
    config.mode = _MODES[graph_mode]
    config.experimental_config.pattern_fusion_pass = False
    config.debug.aclgraph.remove_cat_ops = False
    if graph_mode == "ge_graph":
        config.experimental_config.frozen_parameter = True
        config.experimental_config.tiling_schedule_optimize = True
        config.experimental_config.topology_sorting_strategy = "StableRDFS"
    return config
