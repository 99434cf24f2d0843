"""Streaming trace_view.json: a bare JSON array of events, hundreds of MB, in bounded memory."""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from calibration.profiles.json_values import no_constant
from calibration.profiles.skipped import Skips
from hardware_models.errors import InputError

Event = dict[str, object]

CHUNK_BYTES = 1 << 20
LONGEST_EVENT = 1 << 23
"""Characters of the longest event; call stacks make some of them tens of KB."""

_BLANKS = " \t\r\n"


def stream_events(
    path: Path, skips: Skips, progress: Callable[[int], None] = lambda _: None
) -> Iterator[tuple[int, Event]]:
    """Events with the line that each begins on; an element that is no object is skipped.

    ``progress`` is called with the number of bytes read after every MiB.

    Raises:
        InputError: the file cannot be read, is no array, or is cut off; names the line.
    """
    return _Scanner(path, skips, progress).events()


class _Scanner:
    """A window over the file: what is decoded but not yet parsed, and its line."""

    def __init__(self, path: Path, skips: Skips, progress: Callable[[int], None]) -> None:
        self._path = path
        self._skips = skips
        self._progress = progress
        self._file: BinaryIO
        self._window = ""
        self._at = 0
        self._line = 1
        self._ended = False
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")("backslashreplace")
        self._json = json.JSONDecoder(parse_constant=no_constant)

    def events(self) -> Iterator[tuple[int, Event]]:
        """See :func:`stream_events`."""
        try:
            with self._path.open("rb") as file:
                self._file = file
                if self._next() != "[":
                    raise self._fault("no array", "a JSON array of events")
                self._at += 1
                if self._next() == "]":
                    self._at += 1
                else:
                    yield from self._elements()
                if self._next():
                    raise self._fault("text behind the array", "the end of the file")
        except OSError as error:
            raise InputError(
                "profile", str(self._path), f"a readable file ({error.strerror})"
            ) from None

    def _elements(self) -> Iterator[tuple[int, Event]]:
        while True:
            self._next()
            line = self._line
            element = self._element()
            if isinstance(element, dict):
                yield line, element
            else:
                self._skips.add(self._path, line, "an element that is no event")
            separator = self._next()
            self._at += 1
            if separator == "]":
                return
            if separator != ",":
                found = repr(separator) if separator else "the end of the file"
                raise self._fault(found, "a comma or the end of the array")

    def _element(self) -> object:
        """One JSON value; more is read until it is whole."""
        wanted = CHUNK_BYTES
        while True:
            try:
                value, end = self._json.raw_decode(self._window, self._at)
            except json.JSONDecodeError as error:
                if self._ended or len(self._window) - self._at > LONGEST_EVENT:
                    self._move_to(min(error.pos, len(self._window)))
                    raise self._fault(error.msg, "a whole JSON event") from None
                self._read(wanted)
                wanted *= 2
            except (RecursionError, ValueError) as error:
                raise self._fault(str(error)[:80], "a plain JSON event") from None
            else:
                # A number at the end of the window may go on behind it.
                if end < len(self._window) or self._ended:
                    self._move_to(end)
                    return value
                self._read(CHUNK_BYTES)

    def _next(self) -> str:
        """The next character that is no blank; empty at the end of the file."""
        while True:
            end = self._at
            while end < len(self._window) and self._window[end] in _BLANKS:
                end += 1
            self._move_to(end)
            if end < len(self._window):
                return self._window[end]
            if self._ended:
                return ""
            self._read(CHUNK_BYTES)

    def _move_to(self, end: int) -> None:
        self._line += self._window.count("\n", self._at, end)
        self._at = end

    def _read(self, size: int) -> None:
        data = self._file.read(size)
        self._ended = not data
        text = self._decoder.decode(data, final=self._ended)
        self._window = self._window[self._at :] + text
        self._at = 0
        self._progress(len(data))

    def _fault(self, found: str, allowed: str) -> InputError:
        return InputError("trace", found, allowed, f"{self._path}:{self._line}")
