"""Building the stand-in libraries with gcc, once for each wheel, compiler and source."""

from __future__ import annotations

import hashlib
import importlib.util
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from hardware_models.errors import MachineError, TwinError
from runtime_npu.standins.symbols import Wanted, wanted
from runtime_npu.standins.wheel import cache_folder, find_wheel

TOOLS = ("gcc", "nm", "readelf", "strings")
RUNTIME = "libascendcl.so"
KERNELS = ("libopapi.so", "libnnopbase.so")
"""The libraries in which torch_npu looks kernels up, all by name at run time."""

_ARGUMENTS = ("Tensor", "TensorList", "Scalar", "ScalarList", "IntArray", "BoolArray", "FloatArray")
_SOURCES = ("build.py", "runtime.c", "symbols.py")
_DEFINED = re.compile(r"^(?:const )?(?:\w+ )+\*?(\w+)\(|\bIS\(\"(\w+)\"\)", re.MULTILINE)


class BuildError(TwinError):
    """gcc did not accept the generated source: our own fault."""


def built_standins() -> Path:
    """The folder of the libraries for the fetched wheel, built now if they are not there.

    Raises:
        MachineError: the wheel, gcc or binutils is missing, or the machine is not x86_64.
    """
    wheel = find_wheel()
    if platform.machine() != "x86_64":
        raise MachineError(f"the stand-ins need an x86_64 machine; this is {platform.machine()}")
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        raise MachineError(f"the stand-ins need {', '.join(missing)}: install gcc and binutils")
    folder = cache_folder() / f"standins-{_key(wheel)}"
    if folder.is_dir():
        return folder
    partial = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
    _build(partial, wanted(wheel / "torch_npu", _torch_folder()))
    try:
        partial.rename(folder)
    except OSError:  # another process was first
        shutil.rmtree(partial)
    return folder


def _key(wheel: Path) -> str:
    """Digest of all that decides what is built."""
    record = next(wheel.glob("torch_npu-*.dist-info")) / "RECORD"
    here = Path(__file__).parent
    parts = [record, *(here / name for name in _SOURCES)]
    version = subprocess.run(["gcc", "--version"], capture_output=True, check=True).stdout
    digest = hashlib.sha256(version)
    for path in parts:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _torch_folder() -> Path:
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise MachineError("torch is not installed: pip install 'longcat-twin[runtime]'")
    return Path(spec.origin).parent


def _build(folder: Path, needs: Wanted) -> None:
    _compile(folder, RUNTIME, runtime_source(needs.symbols))
    for name in (library for library in needs.libraries if library != RUNTIME):
        _compile(folder, name, "", "-Wl,--no-as-needed", f"-l:{RUNTIME}")
    for name in KERNELS:
        _compile(folder, name, kernel_source(needs.kernels), f"-l:{RUNTIME}")


def runtime_source(symbols: Iterable[str]) -> str:
    """The hand-written calls, and one that returns success for every other symbol."""
    written = (Path(__file__).parent / "runtime.c").read_text("utf-8")
    defined = {name for pair in _DEFINED.findall(written) for name in pair if name}
    rest = [name for name in symbols if name not in defined]
    # A C++ name is no C identifier: it goes in as the assembler's.
    stubs = [
        f'long stub_{i}(void) __asm__("{name}");\nlong stub_{i}(void) {{ return 0; }}'
        for i, name in enumerate(rest)
    ]
    return "\n".join((written, *stubs, ""))


def kernel_source(kernels: Iterable[str]) -> str:
    """A launch that leaves a line in the log, for each kernel; and the arguments' makers."""
    lines = ["void standin_note(const char *, ...);", "static char argument[64];"]
    for name in kernels:
        lines += [
            f"int {name}GetWorkspaceSize(void) {{ return 0; }}",
            f"int {name}GetMaxWorkspaceSize(void) {{ return 0; }}",
            f"int {name}(void *workspace, unsigned long bytes, void *executor, void *stream) {{",
            f'    standin_note("launch %p {name}", stream);',
            "    return 0;",
            "}",
        ]
    for kind in _ARGUMENTS:
        lines.append(f"void *aclCreate{kind}(void) {{ return argument; }}")
        lines.append(f"int aclDestroy{kind}(void) {{ return 0; }}")
    lines.append("int aclDestroyAclOpExecutor(void) { return 0; }")
    return "\n".join((*lines, ""))


def _compile(folder: Path, name: str, source: str, *extra: str) -> None:
    path = folder / f"{name}.c"
    path.write_text(source, "utf-8")
    flags: Sequence[str] = ("-shared", "-fPIC", "-O1", "-w", f"-Wl,-soname,{name}", f"-L{folder}")
    command = ["gcc", "-o", str(folder / name), str(path), *flags, *extra]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BuildError(f"gcc on the stand-in {name}: {done.stderr}")
