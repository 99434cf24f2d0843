"""How the compiled engine's functions are compiled: inlined into one kernel, cached on disk.

The functions are plain Python: with ``NUMBA_DISABLE_JIT=1`` in the environment they run
uncompiled, on NumPy arrays or, faster, on lists of numbers and of objects.  So no function
uses what lists lack: slices, or places of several numbers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

_njit: Any = numba.njit

Function = TypeVar("Function", bound=Callable[..., Any])


# No part allocates or keeps an array, so none needs to count references; counting them would
# take ten times as long as the simulation.
_OPTIONS: dict[str, Any] = {"error_model": "numpy", "_nrt": False}
_INLINED: dict[str, Any] = {
    "forceinline": True,
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
}


def part(function: Function) -> Function:
    """Compile a part of the kernel, always inlined: its many array arguments cost nothing."""
    return cast(Function, _njit(**_INLINED, **_OPTIONS)(function))


def kernel(function: Function) -> Function:
    """Compile a function that Python calls; the machine code is kept for later processes.

    Numba looks only at the function's own file to see whether kept code is still good, so
    the function must capture :data:`SOURCE_STAMP` in its closure: captured values are part
    of the key under which the code is kept.
    """
    assert "stamp" in function.__code__.co_freevars, "kept code could outlive its sources"
    try:
        return cast(Function, _njit(cache=True, nogil=True, **_OPTIONS)(function))
    except RuntimeError:
        # Neither the package's folder nor the user's cache can be written: compile each time.
        return cast(Function, _njit(nogil=True, **_OPTIONS)(function))


def _stamp() -> int:
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return int.from_bytes(digest.digest()[:7], "big")


SOURCE_STAMP = _stamp()
"""Changes with every source file of this package."""
