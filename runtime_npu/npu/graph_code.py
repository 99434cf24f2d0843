"""From a traced pass to torchair's Python code, and from that to what runs.

This is the way of ``torchair.inference.cache_compile``, without dynamo: its backend makes the
code, which is kept as text, and the same text runs whether it was made now or a week ago.
``cache_compile`` itself takes a method that dynamo traces again, with a guard on each of the
model's weights at every step; the pass is traced already.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from hardware_models.errors import TwinError
from runtime_npu.lower.trace import Traced
from runtime_npu.npu.compiler import compiler_config
from twin.deployment import GraphMode

Kernel = Callable[..., Sequence[torch.Tensor]]
"""Takes a pass's inputs, gives its outputs."""

GE_CACHE = "ge.graph_compiler_cache_dir"


class NoCodeError(TwinError):
    """torchair did not put the pass into code: a limit of its own."""


class _Saver:
    """What torchair's cache backend hands the code to."""

    name = "pass"

    def __init__(self, folder: Path) -> None:
        self.cache_bin = str(folder / "code")
        self.code: str | None = None

    def save_reserved_params(self, graph: torch.fx.GraphModule) -> None:
        """All inputs are arguments."""

    def save_compiled_fx(
        self, graph: torch.fx.GraphModule, inputs: Sequence[object], config: object, code: str
    ) -> None:
        """Keep the code."""
        self.code = code


def graph_code(traced: Traced, graph_mode: GraphMode, folder: Path) -> str:
    """The code of ``traced``; what GE compiles of it will be kept in ``folder``.

    GE keeps graphs with collectives only where CANN lets communicators have names of our own
    (torchair refuses it elsewhere): on others GE compiles the kept code again in every run.

    Raises:
        NoCodeError: torchair has no code for it.
    """
    saver = _Saver(folder)
    backend: Any = import_module("torchair.inference._cache_compiler").CacheBackend
    named: Any = import_module("torch_npu.distributed")._is_support_hccl_comm_name
    ge_options = {GE_CACHE: str(folder)} if graph_mode == "ge_graph" and named() else {}
    with torch.no_grad():
        backend(compiler_config(graph_mode), saver, extend_config=ge_options)(
            traced.graph, list(traced.inputs)
        )
    if saver.code is None:
        raise NoCodeError("torchair's backend gave no code for the traced pass")
    return saver.code


def kernel_of(code: str, folder: Path) -> Kernel:
    """Run ``code``, which makes the graph ready; ``folder`` is where GE's own cache lies."""
    module: Any = import_module("torchair.npu_fx_compiler")._compile_py_code(code)
    if hasattr(module, "_update_ge_cache_dir"):
        module._update_ge_cache_dir(str(folder))
    kernel: Kernel = module.kernel
    return kernel
