"""Schedules as YAML files: reading (strict and validated), writing (stable bytes), shipped ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any, cast

from hardware_models.errors import InputError
from hardware_models.hardware import load_hardware
from hardware_models.yaml_io import Block, BlockList, dump_yaml, parse_yaml, read_text
from twin.models import load_model
from twin.schedule import Schedule
from twin.schema import dump_dataclass, load_dataclass
from twin.validate import validate_schedule

_ROLE_ORDER = ("colocated", "attention", "ffn")
_STREAM_ORDER = ("main", "moe", "link")
_STAGE_ORDER = ("name", "role", "ends_after", "streams", "join")
_PREFETCH_ORDER = ("role", "weight", "after", "bytes")
_UNUSED_SIZES = {
    "colocated": (),
    "attention": ("ep",),
    "ffn": ("attention_tp", "o_proj_tp", "dense_tp", "kvp", "lm_head_tp", "embed_tp"),
}


def shipped_schedules() -> list[str]:
    """Names of the schedules that the package ships; those for CPUs begin with ``cpu/``."""
    return sorted(
        f"{prefix}{item.name[:-5]}"
        for prefix in ("", "cpu/")
        for item in (resources.files("scenarios") / "schedules" / prefix).iterdir()
        if item.name.endswith(".yaml")
    )


def load_schedule(path_or_name: str) -> Schedule:
    """A schedule from a file, or a shipped one by name, parsed and validated.

    Raises:
        InputError: no such file or name, broken YAML, an unknown or missing field, a wrong
            type, or a rule of :func:`twin.validate.validate_schedule`; names the file.
    """
    if path_or_name in shipped_schedules():
        source = f"schedules/{path_or_name}.yaml"
        file = resources.files("scenarios") / "schedules" / f"{path_or_name}.yaml"
        return _validated(parse_schedule(file.read_text("utf-8"), source), source)
    path = Path(path_or_name)
    try:
        found = path.is_file()
    except (OSError, ValueError):  # too long, or a null byte: no path at all
        found = False
    if not found:
        raise InputError(
            "schedule",
            path_or_name,
            f"the path of a schedule file, or a shipped one ({', '.join(shipped_schedules())})",
        )
    source = str(path)
    return _validated(parse_schedule(read_text(path, "schedule"), source), source)


def parse_schedule(text: str, source: str) -> Schedule:
    """The schedule that YAML ``text`` spells, its types checked but not yet its rules.

    Raises:
        InputError: broken YAML, an unknown or missing field, a wrong type.
    """
    return load_dataclass(Schedule, parse_yaml(text, source), source)


def dump_schedule(schedule: Schedule) -> str:
    """``schedule`` as YAML: equal schedules give the same bytes, which load back equal."""
    data = cast(dict[str, Any], dump_dataclass(schedule))
    deployment = data["deployment"]
    roles = _ordered(deployment["roles"], _ROLE_ORDER)
    deployment["roles"] = Block({role: _sizes(role, roles[role]) for role in roles})
    data["deployment"] = Block(deployment)
    data["stages"] = BlockList(_stage(stage) for stage in data["stages"])
    for name, tidy in (("prefetch", _prefetch), ("super_kernel", str)):
        items = data.pop(name)
        if items:
            data[name] = _items(name, items, tidy)
    for name in ("moe", "prefill"):
        if name in data:
            data[name] = data.pop(name)
    return dump_yaml(Block(data))


def save_schedule(schedule: Schedule, path: str | Path) -> None:
    """Write :func:`dump_schedule` to a file, its folder made where missing."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(dump_schedule(schedule), "utf-8")


def _validated(schedule: Schedule, source: str) -> Schedule:
    try:
        model = load_model(schedule.model)
        hardware = load_hardware(schedule.deployment.hardware)
        validate_schedule(schedule, model, hardware)
    except InputError as error:
        # A complaint about the model's or the hardware's own file already names that file.
        raise (error if error.source else error.at(source)) from None
    return schedule


def _items(name: str, items: list[Any], tidy: Callable[[Any], object]) -> list[object]:
    tidied = [tidy(item) for item in items]
    return BlockList(tidied) if name == "prefetch" else tidied


def _stage(stage: dict[str, Any]) -> dict[str, Any]:
    stage["streams"] = _ordered(stage["streams"], _STREAM_ORDER)
    if stage["role"] == "colocated":
        del stage["role"]
    return _ordered(stage, _STAGE_ORDER)


def _prefetch(prefetch: dict[str, Any]) -> dict[str, Any]:
    return _ordered(prefetch, _PREFETCH_ORDER)


def _sizes(role: str, sizes: dict[str, Any]) -> dict[str, Any]:
    """The sizes of a role without those that it does not use (they are 1)."""
    unused = _UNUSED_SIZES.get(role, ())
    return {name: size for name, size in sizes.items() if size != 1 or name not in unused}


def _ordered(data: Mapping[str, Any], order: tuple[str, ...]) -> dict[str, Any]:
    known = [name for name in order if name in data]
    return {name: data[name] for name in [*known, *sorted(set(data) - set(order))]}
