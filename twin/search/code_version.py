"""What computes: a result of another version is neither mixed with this one's nor taken for it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from importlib.resources.abc import Traversable

_PACKAGES = ("hardware_models", "twin")
_COMPUTE = ("numba", "numpy", "scipy")


@cache
def code_version() -> str:
    """What decides the bits of a result: the sources here, and the packages that compute."""
    digest = hashlib.sha256()
    for package in _PACKAGES:
        for path, source in sorted(_sources(files(package), package)):
            digest.update(path.encode() + b"\0" + source + b"\0")
    packages = " ".join(f"{name} {version(name)}" for name in _COMPUTE)
    return f"longcat-twin {version('longcat-twin')} {digest.hexdigest()[:12]}, {packages}"


def _sources(folder: Traversable, path: str) -> Iterator[tuple[str, bytes]]:
    for item in folder.iterdir():
        inner = f"{path}/{item.name}"
        if item.is_dir():
            yield from _sources(item, inner)
        elif item.name.endswith((".py", ".yaml")):
            yield inner, item.read_bytes()
