"""Strict reading and writing of the plain frozen dataclasses that make up a schedule.

The dataclasses themselves stay free of any validation library: pydantic reads their type
hints here, and every complaint of its becomes an :class:`InputError` that names the dotted
field (``stages[1].streams.main.aic``), the value and what is allowed.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin

from pydantic import ConfigDict, TypeAdapter, ValidationError

from hardware_models.errors import InputError

T = TypeVar("T")

_CONFIG = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
_MAX_DEPTH = 64
_MAX_INTEGER = 2**63 - 1
_SHOWN_CHARACTERS = 200


def load_dataclass(cls: type[T], data: object, source: str | None = None) -> T:
    """A ``cls`` made of plain data (mappings, lists, text, numbers), strictly.

    Whole numbers may stand for floats and lists become tuples; nothing else is converted.

    Args:
        cls: a frozen dataclass with fields of scalars, literals, dataclasses, tuples and mappings.
        data: what a YAML or JSON reader returned.
        source: the file that errors name.

    Raises:
        InputError: an unknown or missing field, a wrong type, a value outside its choices, NaN.
    """
    _check_plain(data, (), source, 0)
    try:
        return cast(T, _adapter(cast(Any, cls)).validate_json(json.dumps([data]), strict=True)[0])
    except ValidationError as error:
        found = error.errors(include_url=False)
        # A misspelt field is also a missing one: the spelling is the better message.
        found.sort(key=lambda e: e["type"] != "unexpected_keyword_argument")
        raise _input_error(cls, cast(Mapping[str, Any], found[0]), source) from None


def dump_dataclass(value: object) -> dict[str, object]:
    """The plain data that :func:`load_dataclass` reads back equal; absent options are left out.

    A field whose value is None is left out where None is its default.
    """
    return cast(dict[str, object], _plain(value, type(value)))


def dotted(loc: Sequence[object]) -> str:
    """A path of keys and list positions as one word: ``stages[1].streams.main.aic``."""
    text = ""
    for part in loc:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}" if text else str(part)
    return text or "file"


def field_names(cls: Any) -> tuple[str, ...]:
    """The fields of a dataclass, in order."""
    return tuple(field.name for field in dataclasses.fields(cls))


@cache
def _adapter(cls: Any) -> TypeAdapter[Any]:
    # A configuration can only be given around a dataclass, not to one: hence the tuple.
    return TypeAdapter(tuple[cls], config=_CONFIG)


@cache
def _hints(cls: Any) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _check_plain(data: object, loc: tuple[object, ...], source: str | None, depth: int) -> None:
    """Refuse what JSON cannot carry, so that pydantic sees exactly what was written."""
    if depth > _MAX_DEPTH:
        raise InputError(dotted(loc[:3]), "...", f"at most {_MAX_DEPTH} levels of nesting", source)
    if isinstance(data, Mapping):
        for key, item in data.items():
            if not isinstance(key, str):
                raise InputError(dotted(loc), key, "text as key", source)
            _check_plain(key, loc, source, depth + 1)
            _check_plain(item, (*loc, key), source, depth + 1)
    elif isinstance(data, list | tuple):
        for index, item in enumerate(data):
            _check_plain(item, (*loc, index), source, depth + 1)
    elif isinstance(data, float):
        if not -float("inf") < data < float("inf"):
            raise InputError(dotted(loc), data, "a finite number", source)
    elif isinstance(data, str):
        if any("\ud800" <= character <= "\udfff" for character in data):
            raise InputError(dotted(loc), data, "text without lone surrogates", source)
    elif isinstance(data, int) and abs(data) > _MAX_INTEGER:
        shown = f"a whole number of {data.bit_length()} bits"
        raise InputError(dotted(loc), shown, "a whole number of at most 63 bits", source)
    elif data is not None and not isinstance(data, bool | int):
        raise InputError(dotted(loc), data, "a mapping, a list, text, a number or null", source)


def _input_error(cls: type, error: Mapping[str, Any], source: str | None) -> InputError:
    loc = tuple(error["loc"])[1:]
    value = error["input"]
    if error["type"] == "unexpected_keyword_argument":
        known = ", ".join(field_names(_bare(_type_at(cls, loc[:-1]))))
        return InputError(dotted(loc), _shown(value), f"a known field: {known}", source)
    if loc and loc[-1] == "[key]":
        keys = get_args(_bare(_type_at(cls, loc[:-2])))[0]
        return InputError(dotted(loc[:-2]), loc[-2], f"as key {describe(keys)}", source)
    hint = _type_at(cls, loc)
    allowed = str(error["msg"]) if hint is None else describe(hint)
    if error["type"] == "missing":
        value = "nothing (the field is missing)"
    return InputError(dotted(loc), _shown(value), allowed, source)


def _shown(value: object) -> object:
    text = repr(value)
    return value if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."


def _is_union(hint: Any) -> bool:
    return get_origin(hint) in (Union, types.UnionType)


def _bare(hint: Any) -> Any:
    """The type without its ``| None``; other unions stay."""
    if _is_union(hint):
        parts = [part for part in get_args(hint) if part is not type(None)]
        return parts[0] if len(parts) == 1 else hint
    return hint


def _type_at(cls: type, loc: Sequence[object]) -> Any:
    """The type hint of the field at ``loc``, or None below a union, where it is ambiguous."""
    hint: Any = cls
    for part in loc:
        hint = _bare(hint)
        arguments = get_args(hint)
        if dataclasses.is_dataclass(hint):
            hint = _hints(cast(Any, hint))[str(part)]
        elif get_origin(hint) is tuple and arguments[-1] is not Ellipsis:
            hint = arguments[int(str(part))]
        elif _is_union(hint) or not arguments:
            return None
        else:  # tuple[X, ...] and list[X] have X first, Mapping[K, V] has V last
            hint = arguments[-1 if issubclass(cast(type, get_origin(hint)), Mapping) else 0]
    return hint


_WORDS = {
    int: "a whole number",
    float: "a finite number",
    bool: "true or false",
    str: "text",
    type(None): "null",
}


def describe(hint: Any) -> str:
    """What a field of this type takes, in the words of a YAML file."""
    bare = _bare(hint)
    optional = " or null" if bare is not hint else ""
    if dataclasses.is_dataclass(bare):
        return f"a mapping with the fields {', '.join(field_names(bare))}{optional}"
    if get_origin(bare) is None:
        return _WORDS.get(bare, str(bare)) + optional
    return _describe_generic(bare, get_args(bare)) + optional


def _describe_generic(hint: Any, arguments: tuple[Any, ...]) -> str:
    origin = get_origin(hint)
    if _is_union(hint):
        return " or ".join(map(describe, arguments))
    if origin is Literal:
        return f"one of {', '.join(map(str, arguments))}"
    if origin is tuple and arguments[-1] is not Ellipsis:
        return f"a list of {len(arguments)}: {', '.join(map(describe, arguments))}"
    if origin in (tuple, list):
        return f"a list, each item {describe(arguments[0])}"
    return "a mapping"


def _plain(value: object, hint: Any) -> object:
    bare = _bare(hint)
    if dataclasses.is_dataclass(value):
        hints = _hints(cast(Any, type(value)))
        return {
            field.name: _plain(getattr(value, field.name), hints[field.name])
            for field in dataclasses.fields(value)
            if getattr(value, field.name) is not None or field.default is not None
        }
    if isinstance(value, Mapping):
        return {str(key): _plain(item, get_args(bare)[-1]) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item, get_args(bare)[0]) for item in value]
    # A whole number in a float field is written as a float: equal values, equal bytes.
    return bare(value) if bare in (int, float) and value is not None else value
