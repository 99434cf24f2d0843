"""A die and its links as a set of Parameters, read from a file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import get_args

from hardware_models.errors import InputError
from hardware_models.fitted import (
    Correlation,
    ShapeRanges,
    parse_correlations,
    parse_shapes,
    render_blocks,
)
from hardware_models.parameter import Evidence, Parameter
from hardware_models.yaml_io import Block, dump_yaml, parse_yaml, read_text

FORMAT = 1
_OPTIONAL = {"correlations", "fitted_shapes"}


@dataclass(frozen=True)
class Hardware:
    """Named parameters of one die type; ``hardware["hbm_read_gbps"]`` gives the value.

    ``correlations`` says which fitted parameters move together, ``fitted_shapes`` on which
    shapes the parameters of each kind were fitted; both are empty where no fit wrote them.
    """

    name: str
    parameters: Mapping[str, Parameter]
    correlations: tuple[Correlation, ...] = ()
    fitted_shapes: ShapeRanges = field(default_factory=dict)

    def __getitem__(self, name: str) -> float:
        return self.parameter(name).value

    def parameter(self, name: str) -> Parameter:
        """The parameter with its range, evidence and source.

        Raises:
            InputError: this die has none of that name.
        """
        try:
            return self.parameters[name]
        except KeyError:
            raise InputError(
                "parameter",
                name,
                f"a parameter of {self.name}: {', '.join(sorted(self.parameters))}",
            ) from None

    def __iter__(self) -> Iterator[Parameter]:
        return iter(self.parameters.values())

    def count(self, name: str) -> int:
        """A parameter that counts things (cores, dies), as an int."""
        return int(self[name])

    def with_values(self, values: Mapping[str, float]) -> Hardware:
        """The same die with other values for some parameters; ranges widen to hold them.

        Raises:
            InputError: a name is not a parameter of this die, or a value is not finite.
        """
        changed = dict(self.parameters)
        for name, value in values.items():
            self[name]
            old = changed[name]
            changed[name] = replace(
                old, value=value, low=min(old.low, value), high=max(old.high, value)
            )
        return replace(self, parameters=changed)


def shipped_hardware() -> list[str]:
    """Names of the dies that the package ships."""
    folder = resources.files("hardware_models") / "dies"
    return sorted(item.name[:-5] for item in folder.iterdir() if item.name.endswith(".yaml"))


def shipped_text(name: str) -> str:
    """The text of a shipped die's parameter file."""
    return (resources.files("hardware_models") / "dies" / f"{name}.yaml").read_text("utf-8")


def load_hardware(name_or_path: str) -> Hardware:
    """A shipped die by name, or a parameter file by path.

    Raises:
        InputError: unknown name, unreadable file, unknown or missing field, bad value.
    """
    if name_or_path in shipped_hardware():
        return _shipped(name_or_path)
    path = Path(name_or_path)
    if not path.is_file():
        raise InputError(
            "hardware",
            name_or_path,
            f"a shipped die ({', '.join(shipped_hardware())}) or the path of a parameter file",
        )
    return parse_hardware(read_text(path, "hardware"), str(path))


@cache
def _shipped(name: str) -> Hardware:
    """A shipped die; its file is the package's own, so a process reads it once."""
    return parse_hardware(shipped_text(name), f"dies/{name}.yaml")


def parse_hardware(text: str, source: str) -> Hardware:
    """Read a parameter file: ``format``, ``name``, ``parameters`` by name, what a fit added.

    Raises:
        InputError: see :func:`load_hardware`.
    """
    data = parse_yaml(text, source)
    needed = {"format", "name", "parameters"}
    if not isinstance(data, dict) or not needed <= set(data) <= needed | _OPTIONAL:
        found = sorted(data) if isinstance(data, dict) else type(data).__name__
        allowed = "the keys format, name, parameters and, if fitted, correlations, fitted_shapes"
        raise InputError("file", found, allowed, source)
    if data["format"] != FORMAT:
        raise InputError("format", data["format"], f"{FORMAT}", source)
    if not isinstance(data["parameters"], dict):
        raise InputError("parameters", data["parameters"], "a mapping of parameters", source)
    parameters = {
        str(name): _parse_parameter(str(name), fields, source)
        for name, fields in data["parameters"].items()
    }
    return Hardware(
        str(data["name"]),
        parameters,
        parse_correlations(data.get("correlations", []), parameters, source),
        parse_shapes(data.get("fitted_shapes", {}), source),
    )


def _parse_parameter(name: str, fields: object, source: str) -> Parameter:
    keys = {"value", "unit", "range", "evidence", "source"}
    if not isinstance(fields, dict) or set(fields) != keys:
        found = sorted(fields) if isinstance(fields, dict) else fields
        raise InputError(f"parameters.{name}", found, f"exactly {sorted(keys)}", source)
    span = fields["range"]
    numbers = [fields["value"], *(span if isinstance(span, list) else [None])]
    if len(numbers) != 3 or any(type(x) not in (int, float) for x in numbers):
        raise InputError(
            f"parameters.{name}", numbers, "a number as value and [low, high] as range", source
        )
    if fields["evidence"] not in get_args(Evidence):
        raise InputError(
            f"parameters.{name}.evidence",
            fields["evidence"],
            f"one of {get_args(Evidence)}",
            source,
        )
    try:
        return Parameter(
            name,
            float(numbers[0]),
            str(fields["unit"]),
            float(numbers[1]),
            float(numbers[2]),
            fields["evidence"],
            str(fields["source"]),
        )
    except InputError as error:
        raise error.at(source) from None


def render_hardware(hardware: Hardware, template: str) -> str:
    """A parameter file with this hardware's numbers, in the layout of ``template``.

    ``template`` is a parameter file with one parameter a line (as the shipped ones);
    its comments, groups and order are kept, what a fit added to it is written anew.

    Raises:
        InputError: the template leaves out a parameter of the hardware.
    """
    lines = []
    missing = set(hardware.parameters)
    for line in template.splitlines():
        if line.rstrip(":") in _OPTIONAL:
            break
        name = line.strip().partition(":")[0]
        if line.startswith("  ") and name in missing:
            missing.remove(name)
            lines.append(f"  {name}: {_render_parameter(hardware.parameters[name])}")
        else:
            lines.append(line)
    if missing:
        raise InputError("template", sorted(missing), "a line for every parameter")
    blocks = render_blocks(hardware.correlations, hardware.fitted_shapes)
    return "\n".join(lines) + "\n" + blocks


def dump_hardware(hardware: Hardware) -> str:
    """A parameter file of this hardware alone, without comments; it reads back equal."""
    head = dump_yaml(Block(format=FORMAT, name=hardware.name))
    names = "".join(f"  {name}:\n" for name in hardware.parameters)
    return render_hardware(hardware, f"{head}parameters:\n{names}")


def _render_parameter(parameter: Parameter) -> str:
    def number(value: float) -> str:
        return str(int(value)) if value == int(value) else repr(value)

    source = parameter.source.replace("\\", "\\\\").replace('"', '\\"')
    return (
        f"{{value: {number(parameter.value)}, unit: {parameter.unit}, "
        f"range: [{number(parameter.low)}, {number(parameter.high)}], "
        f'evidence: {parameter.evidence}, source: "{source}"}}'
    )
