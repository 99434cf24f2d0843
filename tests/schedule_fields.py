"""The fields of a schedule, read off its dataclasses: none can be forgotten."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator, Mapping
from typing import Any


def leaves(kind: Any, path: str = "") -> Iterator[str]:
    """The paths of all values below a type: ``[]`` for items of a list, ``*`` for any key."""
    parts = typing.get_args(kind)
    if len(parts) == 2 and parts[1] is type(None):
        yield from leaves(parts[0], path)
    elif dataclasses.is_dataclass(kind):
        for name, hint in typing.get_type_hints(kind).items():
            yield from leaves(hint, f"{path}.{name}" if path else name)
    elif typing.get_origin(kind) is tuple:
        yield from leaves(parts[0], f"{path}[]")
    elif parts and typing.get_origin(kind) is not typing.Literal:
        yield from leaves(parts[1], f"{path}.*")
    else:
        yield path


def values(value: object, path: str = "") -> Iterator[tuple[str, str]]:
    """The values of a schedule under their paths as in :func:`leaves`, with their places."""
    if dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            inner = f"{path}.{field.name}" if path else field.name
            yield from values(getattr(value, field.name), inner)
    elif isinstance(value, Mapping):
        for key in value:
            yield from ((at, f"{key}: {text}") for at, text in values(value[key], f"{path}.*"))
    elif isinstance(value, tuple):
        for place, item in enumerate(value):
            yield from ((at, f"{place}: {text}") for at, text in values(item, f"{path}[]"))
    else:
        yield path, repr(value)
