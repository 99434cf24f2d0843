"""``python -m twin.launch import``: a configuration that people launch today as a schedule."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hardware_models.errors import InputError
from hardware_models.yaml_io import read_text
from twin.deployment import Quantisation
from twin.launch.beside import Beside
from twin.launch.imported import Imported
from twin.launch.plugin import import_plugin
from twin.launch.recipe import import_recipe
from twin.report.table import console
from twin.results import write_result, write_text, write_timing
from twin.schedule_io import dump_schedule
from twin.workload import ExpertLoad

_BY_ENDING = {
    ".yaml": "recipe",
    ".yml": "recipe",
    ".json": "afd_plugin",
    ".sh": "afd_plugin",
    ".txt": "afd_plugin",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportConfig:
    """Configuration of the command; see ``--help``."""

    file: str | None
    target: Literal["recipe", "afd_plugin"] | None
    flags: str | None
    model: str
    die: str
    quantisation: Quantisation
    kv_tokens: int
    acceptance: float | None
    expert_load: ExpertLoad

    def target_name(self) -> str:
        """What wrote the file: as given, else by the file's ending.

        Raises:
            InputError: no file, or neither says; flags for the recipe.
        """
        if self.file is None:
            raise InputError("file", None, "the path of a launch configuration")
        ending = Path(self.file).suffix
        target = self.target or _BY_ENDING.get(ending)
        if target is None:
            known = ", ".join(f"{end}: {name}" for end, name in _BY_ENDING.items())
            allowed = f"recipe or afd_plugin where the file's ending does not say ({known})"
            raise InputError("target", None, allowed)
        if target == "recipe" and self.flags is not None:
            raise InputError("flags", self.flags, "null for the recipe, which has none")
        return target

    @property
    def beside(self) -> Beside:
        """What the file does not say."""
        return Beside(
            model=self.model,
            hardware=self.die,
            quantisation=self.quantisation,
            kv_tokens=self.kv_tokens,
            acceptance=self.acceptance,
            expert_load=self.expert_load,
        )


def main(config: ImportConfig, folder: Path) -> None:
    """Import, write and print.

    Raises:
        InputError: the file or a key of the configuration is wrong.
    """
    began = time.perf_counter()
    target = config.target_name()
    assert config.file is not None
    text = read_text(Path(config.file), "file")
    imported = (
        import_recipe(text, config.file, config.beside)
        if target == "recipe"
        else import_plugin(text, config.file, config.beside, config.flags)
    )
    write_text(folder / "schedule.yaml", dump_schedule(imported.schedule))
    payload = {
        "name": Path(config.file).stem,
        "target": target,
        "schedule": "schedule.yaml",
        "roles": {name: role.dies for name, role in imported.schedule.deployment.roles.items()},
        "assumed": dict(imported.assumed),
        "not_modelled": list(imported.not_modelled),
    }
    write_result(folder, "twin.launch import", 0, payload)
    write_timing(folder, time.perf_counter() - began, {})
    _print(config, target, imported)
    console().print(f"schedule.yaml, result.json in {folder}")


def _print(config: ImportConfig, target: str, imported: Imported) -> None:
    out = console()
    roles = imported.schedule.deployment.roles.items()
    dies = " + ".join(f"{role.dies} {name}" for name, role in roles)
    batch = imported.schedule.workload.global_batch
    out.print(f"{config.file} ({target}): {dies} dies, global batch {batch}")
    assumed = ", ".join(f"{name} {value}" for name, value in imported.assumed.items())
    out.print(f"not in the file, taken as: {assumed}")
    for note in imported.not_modelled:
        out.print(f"no field of a schedule: {note}")
