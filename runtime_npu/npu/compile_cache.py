"""Compiled passes kept on disk: one folder a pass and rank, used only if it is whole and current.

torchair's own ``cache_compile`` names its folders by the module's text and the compiler's
options alone: neither the schedule nor the weights' sizes nor a version is in the name, and what
was changed on the disk runs as long as it can be read.  So the folders here are our own:

    ROOT/main/<schedule and model>/rank-3/     ROOT/mtp/<schedule and model>/rank-3/

Each holds ``manifest.json`` with all that the code depends on, and the SHA-256 of every other
file.  Whatever differs is said, the folder is emptied and the pass is compiled anew.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hardware_models.errors import InputError

Part = Literal["main", "mtp"]
MANIFEST = "manifest.json"
ENTRY = "pass.json"
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class CompiledPass:
    """What was compiled of one pass.

    ``code`` is torchair's Python; ``used`` says which inputs of the pass it takes, in order;
    ``records`` are the ops that the model issued, as dictionaries.
    """

    code: str
    used: tuple[int, ...]
    records: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True)
class CompileCache:
    """The folders of one rank below ``root``.

    ``subject`` (schedule, model) decides the folder; ``versions`` and what a pass adds must be
    the same, too.  ``say`` is told in one line why something is compiled anew.
    """

    root: Path
    subject: Mapping[str, str]
    versions: Mapping[str, str]
    rank: int
    say: Say

    def folder(self, part: Part, name: str) -> Path:
        """Where the pass ``name`` of ``part`` lies."""
        return self.root / part / _digest(self.subject) / f"rank-{self.rank}" / name

    def load(self, part: Part, name: str, inputs: Mapping[str, str]) -> CompiledPass | None:
        """The compiled pass; ``None``: there is none that may be used, and its folder is empty.

        Raises:
            InputError: the folder cannot be read or emptied.
        """
        folder = self.folder(part, name)
        try:
            if not folder.exists():
                return None
            fault = self._fault(folder, inputs)
            if fault is None:
                return _read(folder / ENTRY)
            self.say(f"compile cache: {part} {name} of rank {self.rank}: {fault}; compiling anew")
            shutil.rmtree(folder)
        except OSError as error:
            raise _unusable(folder, error) from None
        return None

    def save(self, part: Part, name: str, compiled: CompiledPass) -> None:
        """Keep ``compiled``; until :meth:`seal` is called the folder counts as unfinished.

        Raises:
            InputError: the folder cannot be written.
        """
        folder = self.folder(part, name)
        entry = {"code": compiled.code, "used": compiled.used, "records": compiled.records}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(0o700)  # what lies in it will be executed
            (folder / ENTRY).write_text(json.dumps(entry), "utf-8")
        except OSError as error:
            raise _unusable(folder, error) from None

    def seal(self, part: Part, name: str, inputs: Mapping[str, str]) -> None:
        """Write the manifest, once everything has been compiled (CANN adds files of its own).

        Raises:
            InputError: the folder cannot be written.
        """
        folder = self.folder(part, name)
        partial = folder.with_name(folder.name + ".manifest")
        try:
            manifest = {**self._wanted(inputs), "files": _checksums(folder)}
            partial.write_text(json.dumps(manifest, indent=1), "utf-8")
            os.replace(partial, folder / MANIFEST)
        except OSError as error:
            raise _unusable(folder, error) from None

    def _wanted(self, inputs: Mapping[str, str]) -> dict[str, Any]:
        return {
            "subject": dict(self.subject),
            "versions": dict(self.versions),
            "inputs": dict(inputs),
        }

    def _fault(self, folder: Path, inputs: Mapping[str, str]) -> str | None:
        """Why the folder may not be used; ``None``: it may."""
        path, held = folder / MANIFEST, folder.stat()
        if held.st_uid != os.getuid() or held.st_mode & 0o022:
            return "may have been written by somebody else"
        if not path.is_file():
            return "was never finished"
        try:
            manifest = json.loads(path.read_text("utf-8"))
            files = dict(manifest["files"])
            known = {name: dict(manifest[name]) for name in self._wanted(inputs)}
        except (ValueError, KeyError, TypeError):
            return "manifest.json is corrupted"
        for group, wanted in self._wanted(inputs).items():
            for key in (*wanted, *(known[group].keys() - wanted.keys())):
                if wanted.get(key) != known[group].get(key):
                    return _change(key, known[group].get(key), wanted.get(key))
        found = _checksums(folder)
        for name in sorted(files.keys() | found.keys()):
            if files.get(name) != found.get(name):
                return f"{name} is {_state(name, files, found)}"
        return None


def _change(key: str, before: object, now: object) -> str:
    """``torch_npu was 2.12.0, now 2.13.0``; long texts are not shown."""
    if max(len(str(before)), len(str(now))) > 60:
        return f"stale: another {key}"
    return f"stale: {key} was {before}, now {now}"


def _state(name: str, files: Mapping[str, str], found: Mapping[str, str]) -> str:
    if name not in found:
        return "missing"
    return "corrupted" if name in files else "unknown"


def _read(path: Path) -> CompiledPass:
    entry = json.loads(path.read_text("utf-8"))
    return CompiledPass(entry["code"], tuple(entry["used"]), tuple(entry["records"]))


def _checksums(folder: Path) -> dict[str, str]:
    """SHA-256 of every file below ``folder`` but the manifest, by its relative path."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in paths
        if path != folder / MANIFEST
    }


def _digest(texts: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps(dict(texts), sort_keys=True).encode()).hexdigest()[:16]


def source_digest(packages: Sequence[Path]) -> str:
    """Digest of the Python files below ``packages``: other code lowers to other graphs."""
    digest = hashlib.sha256()
    for package in packages:
        for path in sorted(package.rglob("*.py")):
            digest.update(path.relative_to(package.parent).as_posix().encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _unusable(folder: Path, error: OSError) -> InputError:
    return InputError(
        "compile_cache", str(folder), f"a folder that can be read and written ({error.strerror})"
    )
