"""Driver, CANN and the torch pair: what is installed, read from files alone."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from runtime_npu.machine.finding import Finding, judge

TORCH_PAIR = "2.13.0"
"""The release of torch and of torch_npu that belong together here."""

LEAST_CANN = (8, 5)
"""torch_npu's own table pairs CANN 8.5.0 with 2.12.0 and has no row for 2.13.0 yet, which can
need no earlier one."""

DRIVER_INFO = Path("usr/local/Ascend/driver/version.info")
TOOLKITS = (
    Path("usr/local/Ascend/cann"),
    Path("usr/local/Ascend/ascend-toolkit/latest"),
)
_VERSION = re.compile(r"^\s*(?:package_)?version\s*=\s*\W*(\d+(?:\.\w+)*)", re.I | re.M)


def check_driver(root: Path) -> Finding:
    """The NPU driver of the machine whose file system begins at ``root``."""
    info = root / DRIVER_INFO
    nodes = sorted(p.name for p in (root / "dev").glob("davinci[0-9]*"))
    found = _version_in([info])
    if found is None or not nodes:
        missing = "no device nodes /dev/davinci*" if found else f"no {info}"
        return Finding("driver", "fault", missing, "install the Ascend HDK driver and firmware")
    return Finding("driver", "ok", f"{found}, {len(nodes)} device nodes")


def check_cann(root: Path, environment: Mapping[str, str]) -> Finding:
    """The CANN toolkit that the environment points to, or one at a usual place."""
    home = environment.get("ASCEND_HOME_PATH") or environment.get("ASCEND_TOOLKIT_HOME")
    folders = [Path(home)] if home else [root / folder for folder in TOOLKITS]
    existing = [folder for folder in folders if folder.is_dir()]
    if not existing:
        where = ", ".join(map(str, folders))
        return Finding("CANN", "fault", f"not at {where}", "install the CANN toolkit and kernels")
    infos = (path for folder in existing for path in sorted(folder.glob("*/*install.info")))
    found = _version_in(infos)
    if found is None:
        return Finding("CANN", "fault", f"{existing[0]}: no *install.info", "reinstall CANN")
    if not home:
        fix = f"source {existing[0]}/set_env.sh"
        return Finding("CANN", "fault", f"{found}, not set up in this shell", fix)
    least = ".".join(map(str, LEAST_CANN))
    return judge("CANN", _numbers(found) >= LEAST_CANN, found, f"install CANN {least} or later")


def check_torch_pair() -> Finding:
    """Torch and torch_npu, as installed beside this package."""
    found = {name: _installed(name) for name in ("torch", "torch_npu")}
    good = all(text is not None and text.split("+")[0] == TORCH_PAIR for text in found.values())
    said = ", ".join(f"{name} {text or 'missing'}" for name, text in found.items())
    return judge("torch pair", good, said, "pip install 'longcat-twin[npu]'")


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _version_in(files: Iterable[Path]) -> str | None:
    for path in files:
        try:
            match = _VERSION.search(path.read_text("utf-8", errors="replace"))
        except OSError:
            continue
        if match:
            return match[1]
    return None


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:2])
