"""The project's error root and its named kinds.

Every error that a user can cause or must act on derives from :class:`TwinError` and
carries the exit code that command lines return for it.  Anything else that reaches the
top of a command is our own fault and exits 1.
"""

from __future__ import annotations


class TwinError(Exception):
    """Root of all errors of the project; ``exit_code`` is what a command returns."""

    exit_code = 1


class InputError(TwinError):
    """The user's input is wrong: names the place, the field, the value and what is allowed."""

    exit_code = 2

    def __init__(self, field: str, value: object, allowed: str, source: str | None = None) -> None:
        self.field = field
        self.value = value
        self.allowed = allowed
        self.source = source
        where = f"{source}: " if source else ""
        super().__init__(f"{where}{field}: got {value!r}; allowed: {allowed}")

    def __reduce__(self) -> tuple[type[InputError], tuple[str, object, str, str | None]]:
        # Worker processes hand errors over pickled; the default would pass only the message.
        return InputError, (self.field, self.value, self.allowed, self.source)

    def at(self, source: str) -> InputError:
        """The same error, with the file (or other origin) that the field came from."""
        return InputError(self.field, self.value, self.allowed, source)


class InfeasibleError(TwinError):
    """Nothing fits: names the constraint that binds and by how much it fails."""

    exit_code = 3


class MachineError(TwinError):
    """The machine lacks something that the command needs (an NPU, CANN, gcc, torch)."""

    exit_code = 4


class DeadlockError(TwinError):
    """A step graph cannot finish; the message lists the ops that wait for each other."""

    exit_code = 2
