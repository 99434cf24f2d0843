"""Priors of the fitted parameters, read from a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources

from hardware_models.errors import InputError
from hardware_models.yaml_io import parse_yaml
from twin.schema import load_dataclass

FORMAT = 1

# Half the width of an 80% interval of the normal distribution, in standard deviations.
Z80 = 1.2816


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior:
    """Centre and 80% range of one parameter; ``source`` says why."""

    centre: float
    range: tuple[float, float]
    source: str

    @property
    def deviation(self) -> float:
        """Standard deviation, as if the range were a normal distribution's 80% interval."""
        return (self.range[1] - self.range[0]) / (2 * Z80)


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorFile:
    """The priors of one die's fitted parameters."""

    format: int
    hardware: str
    priors: Mapping[str, Prior]


def shipped_priors(hardware: str, of: str = "steps") -> Mapping[str, Prior]:
    """The priors shipped for a die: ``of`` its "steps" or its "kernels".

    Raises:
        InputError: none are shipped for it, or the file is wrong.
    """
    file = resources.files("calibration") / "priors" / f"{hardware}.{of}.yaml"
    if not file.is_file():
        raise InputError("hardware", hardware, "a die with a file of priors in calibration/priors")
    source = f"priors/{hardware}.{of}.yaml"
    loaded = load_dataclass(PriorFile, parse_yaml(file.read_text("utf-8"), source), source)
    if loaded.format != FORMAT:
        raise InputError("format", loaded.format, str(FORMAT), source)
    for name, prior in loaded.priors.items():
        if not prior.range[0] <= prior.centre <= prior.range[1]:
            raise InputError(f"priors.{name}", prior.centre, "a centre inside its range", source)
    return loaded.priors
