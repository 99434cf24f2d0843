"""Command lines: Hydra composes the configuration, this module holds the exit codes.

Every command of the project is one call of :func:`run` with the name of its top
configuration in ``scenarios/``, the dataclass of its configuration and its task.  The run
folder is the key ``output``; Hydra changes no directory and writes no file of its own.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from hardware_models.errors import InputError, TwinError
from twin.schema import load_dataclass

Config = TypeVar("Config")

INTERRUPTED = 130
READER_LEFT = 141
FAULT = "This is a fault of longcat-twin, not of your input: please report it with the lines above."
QUIET = (
    "hydra.output_subdir=null",
    "hydra/job_logging=disabled",
    "hydra/hydra_logging=disabled",
)


def run(
    config_name: str,
    config_class: type[Config],
    task: Callable[[Config, Path], None],
    arguments: Sequence[str] | None = None,
) -> int:
    """Run one command and return its exit code.

    ``scenarios/<config_name>.yaml`` is composed with the command line (``arguments``;
    default: the process's own), checked against ``config_class`` and passed to ``task``
    with the run folder, which exists and can be written.

    Returns:
        0 done; 2 the input is wrong; 3 nothing feasible; 4 the machine lacks something;
        1 a fault of ours (with a traceback); 130 interrupted; 141 the reader of a pipe left
        (``| head``).  ``--help`` returns 0.
    """
    outcome: list[BaseException] = []
    given = list(sys.argv[1:] if arguments is None else arguments)

    def entered(config: DictConfig) -> None:
        # Hydra reports a task's exception in its own words and with its own exit code.
        try:
            keys = OmegaConf.to_container(config, resolve=True)
            assert isinstance(keys, dict)
            folder = keys.pop("output")
            loaded = load_dataclass(config_class, keys, "configuration")
            task(loaded, _run_folder(folder, HydraConfig.get()))
        except (Exception, KeyboardInterrupt) as error:
            outcome.append(error)

    try:
        _hydra_main(config_name, entered, given)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 2
    except (Exception, KeyboardInterrupt) as error:
        # A ValueError before the task began is Hydra's answer to a combination of flags.
        outcome.append(
            InputError("command line", " ".join(given), str(error))
            if isinstance(error, ValueError) and not outcome
            else error
        )
    return max((_report(error) for error in outcome), default=0)


def _hydra_main(config_name: str, task: Callable[[DictConfig], None], arguments: list[str]) -> None:
    """Run ``hydra.main`` on these arguments; its exceptions come through."""
    # argparse takes overrides only in one run of words, so ours go beside the user's.
    first = next(
        (i for i, word in enumerate(arguments) if "=" in word and word[0] != "-"), len(arguments)
    )
    decorated: Any = hydra.main(
        config_path="pkg://scenarios", config_name=config_name, version_base="1.3"
    )(task)
    argv, full_error = sys.argv, os.environ.get("HYDRA_FULL_ERROR")
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        # A sweep leaves a file in Hydra's own folder whatever the configuration says.
        with tempfile.TemporaryDirectory() as scratch:
            folders = [f"hydra.{mode}.dir='{scratch}'" for mode in ("run", "sweep")]
            ours = [*QUIET, *folders]
            sys.argv = [argv[0], *arguments[:first], *ours, *arguments[first:]]
            decorated()
    finally:
        sys.argv = argv
        if full_error is None:
            del os.environ["HYDRA_FULL_ERROR"]
        else:
            os.environ["HYDRA_FULL_ERROR"] = full_error


def _run_folder(value: object, hydra_config: Any) -> Path:
    """Make the run folder; each job of a ``--multirun`` gets a numbered one of its own.

    Raises:
        InputError: it cannot be made or written.
    """
    if not isinstance(value, str) or not value:
        raise InputError("output", value, "the path of a folder")
    folder = Path(value)
    if hydra_config.mode == RunMode.MULTIRUN:
        folder /= str(hydra_config.job.num)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InputError(
            "output", value, f"a folder that can be written ({error.strerror})"
        ) from None
    return folder


def _report(error: BaseException) -> int:
    """Say on stderr what happened, in one line where the user can act on it."""
    if isinstance(error, KeyboardInterrupt):
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    if isinstance(error, BrokenPipeError):
        # Nobody reads what is still buffered: flushing it at exit would complain again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return READER_LEFT
    if isinstance(error, TwinError) and error.exit_code != 1:
        print(f"error: {_printable(str(error))}", file=sys.stderr)
        return error.exit_code
    if isinstance(error, (HydraException, OmegaConfBaseException)):
        print(f"error: {_hydra_message(error)}", file=sys.stderr)
        return InputError.exit_code
    traceback.print_exception(error)
    print(FAULT, file=sys.stderr)
    return 1


def _printable(text: str) -> str:
    """Names of files may hold anything: control characters are shown, not sent to a terminal."""
    return "".join(
        char if char.isprintable() or char == "\n" else char.encode("unicode_escape").decode()
        for char in text
    )


def _hydra_message(error: BaseException) -> str:
    """Hydra's message and its cause on one line, without what does not help here."""
    cause = error.__cause__
    parts = [str(error)] + ([str(cause)] if isinstance(cause, OmegaConfBaseException) else [])
    kept = []
    for part in parts:
        # "To append ..." suggests +key=value, which the configuration's types would refuse.
        text = re.split(r"Config search path:|To append to your|\n\s*See https", part)[0]
        kept.append(" ".join(text.split()))
    return "; ".join(kept) + " (--help lists the keys and choices)"
