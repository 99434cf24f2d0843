"""Text from a profile, made safe to show."""

from __future__ import annotations

from rich.markup import escape

LONGEST = 60


def shown(text: str, longest: int = LONGEST) -> str:
    """Text for a terminal table: no control characters, no markup, not too long."""
    plain = "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )
    return escape(plain if len(plain) <= longest else plain[: longest - 3] + "...")
