"""Strict loading: what is wrong is named by dotted field, value and what is allowed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hardware_models.errors import InputError
from hardware_models.yaml_io import dump_yaml, parse_yaml
from twin.schema import dotted, dump_dataclass, load_dataclass


@dataclass(frozen=True, kw_only=True)
class Leaf:
    """The innermost level."""

    count: int
    share: float = 0.5
    limit: int | None = None


@dataclass(frozen=True, kw_only=True)
class Tree:
    """A dataclass with every kind of field that schedules use."""

    name: str
    colour: Literal["red", "green"] = "red"
    leaves: tuple[Leaf, ...] = ()
    by_name: Mapping[str, Leaf] = field(default_factory=dict)
    by_colour: Mapping[Literal["red", "green"], int] = field(default_factory=dict)
    span: tuple[float, float] = (0.0, 1.0)
    special: Leaf | None = None
    is_tall: bool = False


LEAF: dict[str, Any] = {"count": 1}


def refused(data: object) -> InputError:
    with pytest.raises(InputError) as caught:
        load_dataclass(Tree, data, "tree.yaml")
    assert caught.value.source == "tree.yaml"
    assert str(caught.value).startswith("tree.yaml: ")
    return caught.value


def test_lists_become_tuples_and_whole_numbers_serve_as_floats() -> None:
    tree = load_dataclass(
        Tree, {"name": "a", "leaves": [{"count": 2, "share": 1}], "by_name": {"x": LEAF}}
    )
    assert tree == Tree(name="a", leaves=(Leaf(count=2, share=1.0),), by_name={"x": Leaf(count=1)})
    assert type(tree.leaves[0].share) is float


@pytest.mark.parametrize(
    ("data", "where", "value", "allowed"),
    [
        ({}, "name", "nothing (the field is missing)", "text"),
        ({"name": 1}, "name", 1, "text"),
        ({"name": "a", "colour": "blue"}, "colour", "blue", "one of red, green"),
        ({"name": "a", "is_tall": 1}, "is_tall", 1, "true or false"),
        ({"name": "a", "leaves": LEAF}, "leaves", LEAF, "a list, each item a mapping"),
        ({"name": "a", "leaves": [3]}, "leaves[0]", 3, "fields count, share, limit"),
        ({"name": "a", "leaves": [LEAF, {"count": "1"}]}, "leaves[1].count", "1", "a whole number"),
        ({"name": "a", "leaves": [{"count": 1.0}]}, "leaves[0].count", 1.0, "a whole number"),
        ({"name": "a", "leaves": [{"count": True}]}, "leaves[0].count", True, "a whole number"),
        ({"name": "a", "by_name": {"x": {"count": None}}}, "by_name.x.count", None, "whole"),
        ({"name": "a", "by_name": []}, "by_name", [], "a mapping"),
        ({"name": "a", "by_colour": {"blue": 1}}, "by_colour", "blue", "one of red, green"),
        ({"name": "a", "span": [1.0]}, "span[1]", "nothing (the field is missing)", "finite"),
        ({"name": "a", "span": [1.0, "x"]}, "span[1]", "x", "a finite number"),
        ({"name": "a", "special": "x"}, "special", "x", "limit or null"),
        ({"name": "a", "special": {"count": 1, "limit": 0.5}}, "special.limit", 0.5, "or null"),
        ({"name": "a", "span": [0.0, float("inf")]}, "span[1]", float("inf"), "finite"),
        (None, "file", None, "a mapping with the fields name"),
        ([], "file", [], "a mapping with the fields name"),
    ],
)
def test_a_wrong_value_is_named(data: object, where: str, value: object, allowed: str) -> None:
    error = refused(data)
    assert (error.field, error.value) == (where, value)
    assert allowed in error.allowed


def test_nan_is_refused_where_it_stands() -> None:
    error = refused({"name": "a", "leaves": [{"count": 1, "share": float("nan")}]})
    assert error.field == "leaves[0].share"
    assert error.allowed == "a finite number"


def test_an_unknown_field_is_named_with_the_known_ones_even_where_it_is_a_misspelling() -> None:
    error = refused({"name": "a", "leaves": [{"cuont": 1}]})
    assert error.field == "leaves[0].cuont"
    assert error.allowed == "a known field: count, share, limit"


@pytest.mark.parametrize(
    "value", [10**400, -(10**400), b"bytes", {1: 2}, {"a": object}, "\ud800", {"\ud800": 1}]
)
def test_what_a_file_cannot_hold_is_refused_not_converted(value: object) -> None:
    refused({"name": "a", "special": value})


def test_endless_nesting_is_refused() -> None:
    loop: list[object] = []
    loop.append(loop)
    assert "nesting" in refused({"name": "a", "leaves": loop}).allowed


def test_a_huge_value_is_shown_in_part() -> None:
    assert len(str(refused({"name": ["x" * 10_000]}))) < 1_000


def test_dumping_leaves_out_absent_options_and_writes_floats_as_floats() -> None:
    tree = Tree(name="a", leaves=(Leaf(count=1, share=1),), special=Leaf(count=2, limit=3))
    data = dump_dataclass(tree)
    assert data["leaves"] == [{"count": 1, "share": 1.0}]
    assert data["special"] == {"count": 2, "share": 0.5, "limit": 3}
    assert type(data["leaves"][0]["share"]) is float
    assert "special" not in dump_dataclass(Tree(name="a"))


def test_dotted_paths() -> None:
    assert dotted(("stages", 1, "streams", "main", "aic")) == "stages[1].streams.main.aic"
    assert dotted((0, "a")) == "[0].a"
    assert dotted(()) == "file"


FINITE = st.floats(allow_nan=False, allow_infinity=False)
LEAVES = st.builds(
    Leaf,
    count=st.integers(-(2**62), 2**62),
    share=FINITE,
    limit=st.none() | st.integers(0, 99),
)
TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
TREES = st.builds(
    Tree,
    name=TEXT,
    colour=st.sampled_from(["red", "green"]),
    leaves=st.lists(LEAVES, max_size=3).map(tuple),
    by_name=st.dictionaries(TEXT, LEAVES, max_size=3),
    by_colour=st.dictionaries(st.sampled_from(["red", "green"]), st.integers(0, 9)),
    span=st.tuples(FINITE, FINITE),
    special=st.none() | LEAVES,
    is_tall=st.booleans(),
)


@given(TREES)
@example(Tree(name="a\x85b"))
@example(Tree(name="a\n\u2028 b\r"))
@example(Tree(name="1e7", by_name={"on": Leaf(count=1)}))
def test_what_is_written_as_yaml_reads_back_equal(tree: Tree) -> None:
    text = dump_yaml(dump_dataclass(tree))
    again = load_dataclass(Tree, parse_yaml(text, "tree.yaml"))
    assert again == tree
    assert dump_yaml(dump_dataclass(again)) == text


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("a: 1\nb: [1\n", "line 3"),
        ("a: 1\na: 2\n", "line 2"),
        ("a: {b: 1, b: 2}", "line 1"),
        ("a: 1\n1: 2\n", "line 2"),
        ("[1]: 2", "line 1"),
        ("a: !!python/object:os.system x", "line 1"),
        ("a: !!int x", "file"),
        ("a: " + "9" * 5000, "file"),
        ("a: " + "[" * 5000, "file"),
        ("a: 'x\n", "line 2"),
        ("a: \x00", "file"),
    ],
)
def test_broken_yaml_names_file_and_line(text: str, where: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_yaml(text, "broken.yaml")
    assert (caught.value.source, caught.value.field) == ("broken.yaml", where)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e7", 1e7),
        ("1.0e-5", 1e-5),
        ("012", 12),
        ("1:30", "1:30"),
        ("on", "on"),
        ("no", "no"),
        ("2020-01-01", "2020-01-01"),
        ("true", True),
        ("~", None),
        ("'1'", "1"),
        ("1_000", "1_000"),
    ],
)
def test_scalars_mean_what_they_look_like(text: str, value: object) -> None:
    assert parse_yaml(text, "scalar.yaml") == value
    assert type(parse_yaml(text, "scalar.yaml")) is type(value)
