"""YAML text in and out: plain scalars only, no duplicate keys, errors with file and line.

Scalars follow YAML 1.2's core schema (``1e7`` is a number, ``on`` and ``012`` are not
booleans or octals), because a schedule's numbers must mean what they look like.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import cast

import yaml

from hardware_models.errors import InputError

_WIDTH = 120
_LINE_BREAKS = "\n\r\x85\u2028\u2029"
_SCALARS: tuple[tuple[str, str, str], ...] = (
    ("tag:yaml.org,2002:null", r"~|null|Null|NULL|", "~nN\0"),
    ("tag:yaml.org,2002:bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("tag:yaml.org,2002:int", r"[-+]?[0-9]+", "-+0123456789"),
    (
        "tag:yaml.org,2002:float",
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        "-+0123456789.",
    ),
)


class _Loader(yaml.SafeLoader):
    """SafeLoader with the scalars above and with duplicate keys refused."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[object, object]:
        seen: set[object] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise yaml.constructor.ConstructorError(
                    None, None, f"a key must be text, got {key!r}", key_node.start_mark
                )
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"duplicate key {key!r}", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep=deep)


def _construct_int(loader: _Loader, node: yaml.ScalarNode) -> int:
    # Base 10 even with a leading zero, which YAML 1.1 would read as octal.
    return int(loader.construct_scalar(node))


_Loader.add_constructor("tag:yaml.org,2002:int", _construct_int)


class _Dumper(yaml.SafeDumper):
    """SafeDumper that never writes anchors and quotes what either YAML version would misread."""

    def ignore_aliases(self, data: object) -> bool:
        return True


for _tag, _pattern, _first in _SCALARS:
    _regexp = re.compile(f"^(?:{_pattern})$")
    _firsts = ["" if character == "\0" else character for character in _first]
    _Loader.add_implicit_resolver(_tag, _regexp, _firsts)
    _Dumper.add_implicit_resolver(_tag, _regexp, _firsts)


class Block(dict[str, object]):
    """A mapping that is written one key a line; plain dicts are written on one line."""


class BlockList(list[object]):
    """A list that is written one item a line; plain lists are written on one line."""


def _represent_block(dumper: _Dumper, data: Block) -> yaml.MappingNode:
    return dumper.represent_mapping("tag:yaml.org,2002:map", data.items(), flow_style=False)


def _represent_block_list(dumper: _Dumper, data: BlockList) -> yaml.SequenceNode:
    return dumper.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=False)


def _represent_text(dumper: _Dumper, data: str) -> yaml.ScalarNode:
    # Outside double quotes, line breaks (also the Unicode ones) are folded when read back.
    style = '"' if any(character in _LINE_BREAKS for character in data) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", data, style=style)


_Dumper.add_representer(str, _represent_text)
_Dumper.add_representer(Block, _represent_block)
_Dumper.add_representer(BlockList, _represent_block_list)


def parse_yaml(text: str, source: str) -> object:
    """The plain data (mappings, lists, scalars) that ``text`` holds.

    Raises:
        InputError: broken YAML, a duplicate key or a tag that is not plain data; names the
            file ``source`` and, where known, the line.
    """
    try:
        return cast(object, yaml.load(text, Loader=_Loader))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f"line {mark.line + 1}" if mark else "file"
        problem = error.problem or error.context or "broken YAML"
        raise InputError(line, problem, "valid YAML with every key once", source) from None
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, RecursionError) as error:
        # Explicit tags on unfit scalars ("!!int x") and endless nesting end up here.
        problem = str(error).partition("\n")[0] or type(error).__name__
        raise InputError("file", problem, "valid YAML", source) from None


def dump_yaml(data: object) -> str:
    """``data`` as YAML: :class:`Block` and :class:`BlockList` by line, the rest inline."""
    return yaml.dump(
        data,
        Dumper=_Dumper,
        sort_keys=False,
        default_flow_style=True,
        width=_WIDTH,
        allow_unicode=True,
    )


def read_text(path: Path, field: str) -> str:
    """The text of a file.

    Raises:
        InputError: it cannot be read or is not UTF-8; ``field`` is what asked for it.
    """
    try:
        return path.read_text("utf-8-sig")  # editors on Windows begin files with a mark
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(field, str(path), f"a readable UTF-8 file ({error})") from None
