"""What the wheel's libraries ask of CANN: symbols, libraries, and names that they look up."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

_SYSTEM = re.compile(r"\s(?:libstdc\+\+|libm|libgcc_s|libc|libpthread|libdl|librt|ld-linux)\S*\s")
_NEEDED = re.compile(r"\(NEEDED\).*\[(lib[^\]]+\.so)\]")
_LOOKED_UP = re.compile(
    r"(?:aclrt|aclmdl|aclprof|aclop|Hccl)[A-Za-z0-9]+|aclSetCompileopt|aclsysGetVersionStr"
)
_KERNEL = re.compile(r"aclnn[A-Z]\w+")
_OPTIONAL = "libop_plugin_atb.so"
"""A plugin for another library, loaded on demand only."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """``symbols`` of the runtime, ``kernels`` (aclnn names) and ``libraries`` to link against."""

    symbols: tuple[str, ...]
    kernels: tuple[str, ...]
    libraries: tuple[str, ...]


def wanted(torch_npu: Path, torch: Path) -> Wanted:
    """What the wheel at ``torch_npu`` wants beyond ``torch`` and the system's libraries."""
    wheel = [path for path in sorted(torch_npu.rglob("*.so*")) if path.name != _OPTIONAL]
    beside = sorted((torch / "lib").glob("*.so*"))
    bundled = sorted(torch_npu.with_name("torch_npu.libs").glob("*"))
    provided = _dynamic([*wheel, *beside, *bundled, *_system_libraries()], defined=True)
    text = set(_lines(["strings", "-n", "4", str(torch_npu / "lib" / "libtorch_npu.so")]))
    missing = {
        name
        for name in _dynamic(wheel, defined=False) - provided
        if not name.startswith(("Py", "_Py"))
    }
    # Headers' include guards look like names too; they end in H or L.
    looked_up = {s for s in text if _LOOKED_UP.fullmatch(s) and not s.endswith(("H", "L"))}
    kernels = {
        re.sub("Get(Max)?WorkspaceSize$", "", name) for name in text if _KERNEL.fullmatch(name)
    }
    here = {path.name for path in (*wheel, *beside)}
    needed = {
        name
        for path in wheel
        for line in _lines(["readelf", "-d", str(path)])
        for name in _NEEDED.findall(line)
    }
    return Wanted(
        symbols=tuple(sorted(missing | looked_up)),
        kernels=tuple(sorted(kernels)),
        libraries=tuple(sorted(needed - here)),
    )


def _dynamic(paths: Iterable[Path], *, defined: bool) -> set[str]:
    """Names in the dynamic symbol tables; of undefined ones those that are not weak."""
    names: set[str] = set()
    flag = "--defined-only" if defined else "--undefined-only"
    for path in paths:
        for line in _lines(["nm", "-D", flag, str(path)]):
            *_, kind, name = ("", *line.split())
            if defined or kind == "U":
                names.add(name.split("@")[0])
    return names


def _system_libraries() -> list[Path]:
    found = _lines(["/sbin/ldconfig", "-p"])
    return [Path(line.split()[-1]) for line in found if _SYSTEM.search(line)]


def _lines(command: Sequence[str]) -> list[str]:
    # nm complains about what is no library; that names nothing.
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.splitlines()
