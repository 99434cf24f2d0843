"""Streams, limits and scopes of the npu backend are left again, whatever is raised inside."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from schedules import TWO_STREAMS

from hardware_models.errors import InputError
from hardware_models.hardware import load_hardware
from runtime_npu.backends import npu_order
from runtime_npu.backends.npu import NpuBackend
from runtime_npu.backends.npu_issue import Listener
from runtime_npu.backends.npu_order import CapturedOrder, EagerOrder, GeOrder, Order
from runtime_npu.model.issue import Issuer, no_weight
from runtime_npu.npu.forms import Forms
from runtime_npu.plan import layer_plan

A3 = load_hardware("a3-752t")
PLANNED = replace(TWO_STREAMS, prefetch=())


class Scopes:
    """torchair's scopes, which only remember what is open."""

    def __init__(self) -> None:
        self.open: list[tuple[object, ...]] = []
        self.entered = 0

    @contextmanager
    def __call__(self, name: str, *arguments: object) -> Iterator[None]:
        self.open.append((name, *arguments))
        self.entered += 1
        try:
            yield
        finally:
            assert self.open.pop() == (name, *arguments)


@pytest.fixture
def scopes(monkeypatch: pytest.MonkeyPatch) -> Scopes:
    made = Scopes()
    monkeypatch.setattr(npu_order, "scope", made)
    return made


class _Stream:
    def __init__(self, npu: Any) -> None:
        self._npu = npu

    def __enter__(self) -> None:
        self._npu.entered.append(self)

    def __exit__(self, *_: object) -> None:
        assert self._npu.entered.pop() is self


class _Npu:
    """``torch.npu``, whose streams only remember which of them is current."""

    def __init__(self) -> None:
        self.entered: list[_Stream] = []

    def Stream(self) -> _Stream:  # noqa: N802
        return _Stream(self)

    def current_stream(self) -> _Stream:
        return _Stream(self)

    def stream(self, stream: _Stream) -> _Stream:
        return stream


def backend(order: Order) -> NpuBackend:
    return NpuBackend(Forms(), order, lambda group: "", Listener())


def fail(*_: object) -> torch.Tensor:
    raise InputError("npu_swiglu.x.dtype", "float64", "bfloat16")


def issue_until_it_fails(made: NpuBackend, at: str) -> None:
    """The ops of both stages and of the MoE's branch; the one called ``at`` fails."""
    issue = Issuer(made, "layer.0.", layer_plan(PLANNED), no_weight)

    def op(name: str) -> None:
        issue(name, fail if name == at else _nothing)

    with issue.stages():
        op("attention.0.post_norm")
        with issue.moe_branch():
            op("moe.topk")
        op("dense.0.swiglu")
    with issue.last_stage():
        op("add")


def _nothing() -> None:
    pass


@pytest.mark.parametrize("at", ["attention.0.post_norm", "moe.topk", "dense.0.swiglu", "add"])
@pytest.mark.parametrize("kind", [GeOrder, CapturedOrder])
def test_a_raising_op_leaves_no_scope_open(
    at: str, kind: type[GeOrder | CapturedOrder], scopes: Scopes
) -> None:
    made = backend(order := kind(A3))
    with pytest.raises(InputError, match="npu_swiglu"):
        issue_until_it_fails(made, at)
    assert scopes.entered > 0
    assert scopes.open == []
    assert order.current == "main"
    # What comes next is under no limit and in no scope of before.
    scopes.entered = 0
    with order.core_limit(None, None), order.super_kernel(None), order.stream("main"):
        assert scopes.open == []
    assert scopes.entered == 0
    record = made.recorder.take()
    made.launch("next", "add")
    (after,) = made.recorder.take()
    assert (after.stream, after.aic, after.aiv, after.scope) == ("main", None, None, None)
    assert record


def test_a_raising_op_leaves_the_devices_own_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    npu = _Npu()
    monkeypatch.setattr(torch, "npu", npu, raising=False)
    order = EagerOrder(A3)
    with pytest.raises(InputError), order.stream("link"), order.stream("moe"):
        fail()
    assert npu.entered == []
    assert order.current == "main"


def launch_and_fail(made: NpuBackend) -> None:
    with made.stream("moe"):
        made.launch("moe.topk", "topk_gating")
        fail()


def test_a_pass_that_fails_gives_the_backend_back(scopes: Scopes) -> None:
    made = backend(outer := GeOrder(A3))
    recorder = made.recorder
    inner = CapturedOrder(A3)
    with pytest.raises(InputError), made.issuing(Forms(), inner, Listener()) as own:
        launch_and_fail(made)
    assert made.recorder is recorder
    assert [record.name for record in own.take()] == ["moe.topk"]
    assert (outer.current, inner.current) == ("main", "main")
    assert scopes.open == []
