"""What torchrun tells a process about its rank."""

from __future__ import annotations

from collections.abc import Mapping

from hardware_models.errors import InputError


def whole_number(environment: Mapping[str, str], name: str) -> int | None:
    """The number in variable ``name``; ``None`` where it is not set.

    Raises:
        InputError: it is none.
    """
    text = environment.get(name)
    if text is None:
        return None
    if not text.isdecimal():
        raise InputError(name, text, "a whole number, as torchrun sets it")
    return int(text)
