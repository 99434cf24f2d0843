"""``python -m twin.launch export``: a schedule as a configuration that people launch today."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rich.table import Table

from hardware_models.yaml_io import parse_yaml, read_text
from twin.choices import HardwareChoice
from twin.given import load_given
from twin.launch.beside import beside_of
from twin.launch.differences import Comparison, Step, compare, differences
from twin.launch.plugin_export import HOST, HTTP_PORTS, PORT, nearest_plugin, plugin_commands
from twin.launch.plugin_flags import command_text, read_commands
from twin.launch.recipe import recipe_yaml, unfilled
from twin.launch.recipe_export import nearest_recipe
from twin.launch.recipe_keys import read_recipe, settings_of, with_settings
from twin.model_spec import ModelSpec
from twin.report.table import console
from twin.results import write_result, write_text, write_timing
from twin.schedule import Schedule
from twin.schedule_io import dump_schedule

Target = Literal["recipe", "afd_plugin"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportConfig:
    """Configuration of the command; see ``--help``."""

    schedule: str
    target: Target
    keep: str | None
    hardware: HardwareChoice


@dataclass(frozen=True, slots=True)
class Exported:
    """A launch configuration: its file, and the schedule that it launches."""

    file: str
    text: str
    nearest: Schedule
    undecided: Mapping[str, Any]
    """Keys that no schedule decides, as they were filled in."""


def export_recipe(schedule: Schedule, model: ModelSpec, keep: str | None = None) -> Exported:
    """The recipe's YAML nearest to a schedule; ``keep`` is a file whose other keys stay.

    Raises:
        InputError: ``keep`` is wrong, or the schedule is not one of decode.
        InfeasibleError: no legal file is near.
    """
    if keep is None:
        settings, nearest = nearest_recipe(schedule, model)
        filled = unfilled(schedule)
        data = with_settings(settings, filled, complete=True)
        return Exported("launch.yaml", recipe_yaml(data), nearest, filled)
    kept = parse_yaml(read_text(Path(keep), "keep"), keep)
    before = settings_of(read_recipe(kept, keep))
    streams = before.enable_multi_streams if before.enable_afd else 1
    settings, nearest = nearest_recipe(schedule, model, afd_streams=streams or 1)
    assert isinstance(kept, dict)
    data = with_settings(settings, kept, complete=False)
    return Exported("launch.yaml", recipe_yaml(data), nearest, {})


def export_plugin(schedule: Schedule, model: ModelSpec, keep: str | None = None) -> Exported:
    """The plugin's commands nearest to a schedule; ``keep`` holds commands whose rest stays.

    Raises:
        InputError: ``keep`` is wrong, the schedule is colocated or not one of decode.
        InfeasibleError: no legal split of the dies is near.
    """
    settings, nearest = nearest_plugin(schedule, model)
    kept = None if keep is None else read_commands(read_text(Path(keep), "keep"), keep)
    commands = plugin_commands(settings, schedule.model, kept, keep or "")
    text = "\n".join(command_text(command) for command in commands)
    ports = {} if kept else {"host": HOST, "port": PORT, "--port": [*HTTP_PORTS.values()]}
    return Exported("launch.sh", text, nearest, ports)


EXPORTS = {"recipe": export_recipe, "afd_plugin": export_plugin}


def main(config: ExportConfig, folder: Path) -> None:
    """Export, compare, write and print.

    Raises:
        InputError: the schedule, the die or the kept file is wrong.
        InfeasibleError: no legal configuration is near.
    """
    began = time.perf_counter()
    given = load_given(config.schedule, config.hardware)
    schedule, model = given.schedule, given.model
    exported = EXPORTS[config.target](schedule, model, config.keep)
    found = differences(schedule, exported.nearest)
    comparison = compare(schedule, exported.nearest, found, model, given.hardware)
    write_text(folder / exported.file, exported.text)
    write_text(folder / "nearest.yaml", dump_schedule(exported.nearest))
    payload = {
        "name": Path(config.schedule).stem,
        "target": config.target,
        "launch": exported.file,
        "nearest": "nearest.yaml",
        "exact": not found,
        "tpot_ms": _ms(comparison.asked_us),
        "nearest_tpot_ms": _ms(comparison.nearest_us),
        "reason": comparison.reason,
        "unsayable": [_row(step) for step in comparison.steps],
        "undecided": dict(exported.undecided),
        "beside": beside_of(schedule).as_data(),
    }
    write_result(folder, "twin.launch export", 0, payload)
    write_timing(folder, time.perf_counter() - began, {})
    _print(config, comparison)
    console().print(f"{exported.file}, nearest.yaml, result.json in {folder}")


def _ms(us: float | None) -> float | None:
    return None if us is None else us / 1e3


def _row(step: Step) -> dict[str, object]:
    return {
        "fields": [
            {"field": d.part, "asked": d.asked, "nearest": d.nearest} for d in step.differences
        ],
        "tpot_ms": _ms(step.tpot_us),
        "cost_ms": _ms(step.cost_us),
    }


def _print(config: ExportConfig, comparison: Comparison) -> None:
    out = console()
    if not comparison.steps:
        out.print(f"{config.target} says all of {config.schedule}")
        return
    title = f"what {config.target} cannot say of {config.schedule}; costs add up downwards"
    table = Table(title=title)
    for column in ("field", "asked", "nearest"):
        table.add_column(column, overflow="fold")
    table.add_column("costs ms of TPOT", justify="right")
    for step in comparison.steps:
        cost = "not simulated" if step.cost_us is None else f"{step.cost_us / 1e3:+.3f}"
        for place, difference in enumerate(step.differences):
            shown = cost if place == 0 else "with the line above"
            table.add_row(difference.part, difference.asked, difference.nearest, shown)
    out.print(table)
    if comparison.asked_us is not None and comparison.nearest_us is not None:
        share = comparison.nearest_us / comparison.asked_us - 1
        out.print(
            f"predicted TPOT {comparison.asked_us / 1e3:.3f} ms as asked, "
            f"{comparison.nearest_us / 1e3:.3f} ms as launched ({share:+.1%})"
        )
    else:
        out.print(f"no cost: {comparison.reason}")
