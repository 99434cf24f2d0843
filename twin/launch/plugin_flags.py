"""Command lines of vLLM with the AFD plugin: words to flags and values, and back.

A file holds one command a role (``vllm serve MODEL --flag value ...``, lines joined by a
backslash, environment before it), or one role's additional configuration as JSON, whose flags
are then given apart.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from hardware_models.errors import InputError

Kind = Literal["number", "share", "text", "switch", "json"]
Value = int | float | str | bool | dict[str, object]

DECIDED: Mapping[str, Kind] = {
    "--tensor-parallel-size": "number",
    "--data-parallel-size": "number",
    "--max-num-seqs": "number",
    "--max-num-batched-tokens": "number",
    "--enforce-eager": "switch",
    "--compilation-config": "json",
    "--enable-dbo": "switch",
    "--ubatch-size": "number",
    "--dbo-decode-token-threshold": "number",
    "--speculative-config": "json",
    "--additional-config": "json",
}
"""Flags that decide something in a schedule."""
KEPT: Mapping[str, Kind] = {
    "--dbo-prefill-token-threshold": "number",
    "--data-parallel-size-local": "number",
    "--data-parallel-start-rank": "number",
    "--data-parallel-address": "text",
    "--data-parallel-rpc-port": "number",
    "--headless": "switch",
    "--enable-expert-parallel": "switch",
    "--host": "text",
    "--port": "number",
    "--served-model-name": "text",
    "--trust-remote-code": "switch",
    "--gpu-memory-utilization": "share",
    "--max-model-len": "number",
    "--quantization": "text",
    "--seed": "number",
    "--no-enable-prefix-caching": "switch",
}
"""Flags that a schedule has no say in; they are kept."""
ADDITIONAL = "--additional-config"

_KINDS = {**DECIDED, **KEPT}
_WORDS: Mapping[Kind, str] = {
    "number": "a whole number from 0",
    "share": "a number",
    "text": "text",
    "switch": "no value",
    "json": "a JSON object",
}
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Command:
    """One role's command: environment, what is served, flags in order."""

    environment: tuple[str, ...]
    model: str | None
    flags: Mapping[str, Value]


def read_commands(text: str, source: str, flags: str | None = None) -> list[Command]:
    """The commands in ``text``; ``flags`` are more words for a file of JSON.

    Raises:
        InputError: no command, broken quoting or JSON, an unknown flag or one given twice, a
            value of the wrong type.
    """
    if text.lstrip().startswith("{"):
        command = _command(shlex_words(flags or "", "flags"), "flags")
        if ADDITIONAL in command.flags:
            raise InputError("flags", ADDITIONAL, f"once; {source} holds it", source)
        config = read_json(text, "file", source)
        merged = {**command.flags, ADDITIONAL: config}
        return [Command(command.environment, command.model, merged)]
    if flags is not None:
        raise InputError("flags", flags, f"none beside the commands of {source}", source)
    lines = re.sub(r"\\\r?\n", " ", text).splitlines()
    words = [shlex_words(line, source) for line in lines]
    commands = [_command(line, source) for line in words if line]
    if not commands:
        raise InputError("file", "no command", "vllm serve MODEL --flag value ...", source)
    return commands


def shlex_words(line: str, source: str) -> list[str]:
    """The words of a shell line, comments left out.

    Raises:
        InputError: a quote is not closed.
    """
    try:
        return shlex.split(line, comments=True)
    except ValueError as error:
        raise InputError("command", line, f"a shell command ({error})", source) from None


def _command(words: list[str], source: str) -> Command:
    place = 0
    while place < len(words) and _ASSIGNMENT.fullmatch(words[place]):
        place += 1
    environment, rest = tuple(words[:place]), words[place:]
    model = None
    if rest[:2] == ["vllm", "serve"]:
        rest = rest[2:]
        if rest and not rest[0].startswith("--"):
            model, rest = rest[0], rest[1:]
    flags: dict[str, Value] = {}
    while rest:
        name, _, given = rest[0].partition("=")
        name = _plain(name)
        kind = _KINDS.get(name)
        if kind is None:
            known = ", ".join(_KINDS)
            raise InputError("flag", rest[0], f"vllm serve MODEL, then one of {known}", source)
        if name in flags:
            raise InputError(name, "twice", "once", source)
        rest = rest[1:]
        if kind == "switch":
            if given:
                raise InputError(name, given, "no value", source)
            flags[name] = True
            continue
        if not given:
            if not rest or rest[0].startswith("--"):
                raise InputError(name, "nothing", _WORDS[kind], source)
            given, rest = rest[0], rest[1:]
        flags[name] = _value(name, kind, given, source)
    return Command(environment, model, flags)


def _plain(name: str) -> str:
    """A flag with dashes: vLLM takes underscores too."""
    return "--" + name[2:].replace("_", "-") if name.startswith("--") else name


def _value(name: str, kind: Kind, given: str, source: str) -> Value:
    if kind == "json":
        return read_json(given, name, source)
    if kind == "number":
        if not re.fullmatch(r"[0-9]{1,18}", given):
            raise InputError(name, given, _WORDS[kind], source)
        return int(given)
    if kind == "share":
        try:
            value = float(given)
        except ValueError:
            value = float("nan")
        if not 0.0 < value <= 1.0:
            raise InputError(name, given, "a share above 0, at most 1", source)
        return value
    return given


def read_json(text: str, field: str, source: str) -> dict[str, object]:
    """A JSON object, every key once.

    Raises:
        InputError: anything else; names ``field``.
    """

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        data = dict(pairs)
        if len(data) < len(pairs):
            raise ValueError("a key stands twice")
        return data

    try:
        data = json.loads(text, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        shown = text if len(text) <= 100 else f"{text[:100]}..."
        allowed = f"a JSON object with every key once ({error})"
        raise InputError(field, shown, allowed, source) from None
    if not isinstance(data, dict):
        raise InputError(field, data, "a JSON object", source)
    return data


def command_text(command: Command) -> str:
    """The command as shell text, a flag a line; equal commands give equal bytes."""
    head = [*command.environment, "vllm", "serve"]
    head += [command.model] if command.model is not None else []
    lines = [" ".join(_quoted(word) for word in head)]
    for name, value in command.flags.items():
        if value is True:
            lines.append(name)
        else:
            shown = json.dumps(value) if isinstance(value, dict) else str(value)
            lines.append(f"{name} {shlex.quote(shown)}")
    return " \\\n  ".join(lines) + "\n"


def _quoted(word: str) -> str:
    name, sign, value = word.partition("=")
    is_assignment = _ASSIGNMENT.fullmatch(word) is not None
    return f"{name}{sign}{shlex.quote(value)}" if is_assignment else shlex.quote(word)
