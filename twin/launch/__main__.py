"""``python -m twin.launch``: import and export of launch configurations."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from twin.cli import run
from twin.launch import export, importing

USAGE = """python -m twin.launch export schedule=FILE|NAME target=recipe|afd_plugin [key=value ...]
python -m twin.launch import file=FILE [key=value ...]

Writes a schedule as a configuration that people launch LongCat-Flash with today, and reads
one as a schedule.  Each command has its own --help, which lists its keys (output is the run
folder).  Exit codes: 0 done, 2 wrong input, 3 no legal configuration is near, 4 the machine
lacks something, 1 a fault of longcat-twin, 130 interrupted."""


def main(arguments: Sequence[str]) -> int:
    """Run the command that the first word names; its exit code."""
    first, rest = (arguments[0], list(arguments[1:])) if arguments else ("", [])
    if first == "export":
        return run("launch_export", export.ExportConfig, export.main, rest)
    if first == "import":
        return run("launch_import", importing.ImportConfig, importing.main, rest)
    if first in ("-h", "--help"):
        print(USAGE)
        return 0
    print(f"error: command: got {first!r}; allowed: export, import (--help)", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
