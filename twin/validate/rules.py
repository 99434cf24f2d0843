"""The one way in which a rule is refused."""

from __future__ import annotations

from hardware_models.errors import InputError


def require(holds: bool, field: str, value: object, allowed: str) -> None:
    """Raise an :class:`InputError` for ``field`` unless the rule holds."""
    if not holds:
        raise InputError(field, value, allowed)
