"""``python -m benchmarks.runtime``: decode on the CPU beside transformers, on the same weights."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.process import in_own_process, peak_mb
from hardware_models.errors import InputError
from twin.cli import run
from twin.model_spec import ModelSpec
from twin.report.table import console
from twin.results import write_result, write_timing

MODELS = {
    # LongCat-Flash's own head sizes; widths, experts and layers cut to about 1 B parameters.
    "mid": ModelSpec(
        name="mid",
        vocab_size=32768,
        hidden_size=1536,
        num_layers=5,
        num_attention_heads=16,
        ffn_hidden_size=3072,
        q_lora_rank=384,
        kv_lora_rank=512,
        qk_nope_head_dim=128,
        qk_rope_head_dim=64,
        v_head_dim=128,
        n_routed_experts=64,
        zero_expert_num=32,
        moe_topk=12,
        expert_ffn_hidden_size=512,
    ),
    "small": ModelSpec(
        name="small",
        vocab_size=512,
        hidden_size=128,
        num_layers=2,
        num_attention_heads=4,
        ffn_hidden_size=256,
        q_lora_rank=48,
        kv_lora_rank=64,
        qk_nope_head_dim=32,
        qk_rope_head_dim=16,
        v_head_dim=32,
        n_routed_experts=8,
        zero_expert_num=4,
        moe_topk=3,
        expert_ffn_hidden_size=64,
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeConfig:
    """Configuration of the command; see ``--help``."""

    model: str
    kv_tokens: tuple[int, ...]
    batch: int
    steps: int
    threads: int
    seed: int

    def check(self) -> None:
        """Refuse an unknown model and numbers out of range.

        Raises:
            InputError: names the key.
        """
        if self.model not in MODELS:
            raise InputError("model", self.model, f"one of {', '.join(MODELS)}")
        if not self.kv_tokens:
            raise InputError("kv_tokens", [], "at least one length")
        most = MODELS[self.model].max_position_embeddings - self.steps
        for length in self.kv_tokens:
            if not 1 <= length <= most:
                raise InputError("kv_tokens", length, f"1 to {most}")
        for key, value in (
            ("batch", self.batch), ("steps", self.steps), ("threads", self.threads)
        ):  # fmt: skip
            if value < 1:
                raise InputError(key, value, "a whole number from 1")
        if self.seed < 0:
            raise InputError("seed", self.seed, "a whole number from 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """Greedy decoding: prefill and median step in s, new tokens per s, the process's peak."""

    prefill_s: float
    step_s: float
    tokens_per_s: float
    peak_mb: float
    token_ids: tuple[tuple[int, ...], ...]


def with_transformers(folder: Path, prompts: list[list[int]], steps: int, threads: int) -> Decoded:
    """By transformers' model, cache and attention; in prefill with the last logits only."""
    import torch  # noqa: PLC0415
    import transformers  # noqa: PLC0415

    torch.set_num_threads(threads)
    model = transformers.LongcatFlashForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.requires_grad_(requires_grad=False)
    with torch.inference_mode():
        start = time.perf_counter()
        out = model(input_ids=torch.tensor(prompts), use_cache=True, logits_to_keep=1)
        tokens = [out.logits[:, -1].argmax(-1)]
        prefill_s, times = time.perf_counter() - start, []
        for _ in range(steps):
            start = time.perf_counter()
            out = model(input_ids=tokens[-1][:, None], cache=out.cache, use_cache=True)
            tokens.append(out.logits[:, -1].argmax(-1))
            times.append(time.perf_counter() - start)
    made = [token.tolist() for token in tokens]
    return _decoded(prefill_s, times, list(map(list, zip(*made, strict=True))))


def with_runtime(folder: Path, prompts: list[list[int]], steps: int, threads: int) -> Decoded:
    """By the model of this project on its reference backend."""
    import torch  # noqa: PLC0415

    from runtime_npu.backends.reference import ReferenceBackend  # noqa: PLC0415
    from runtime_npu.checkpoint import Checkpoint, load_weights  # noqa: PLC0415
    from runtime_npu.generate import Decoder, generate  # noqa: PLC0415
    from runtime_npu.kv_cache import pool_blocks  # noqa: PLC0415
    from runtime_npu.model.longcat import LongcatFlash  # noqa: PLC0415
    from twin.models import load_model  # noqa: PLC0415

    torch.set_num_threads(threads)
    spec = load_model(str(folder))
    model = LongcatFlash(spec, ReferenceBackend())
    with Checkpoint(folder, spec, "float32") as checkpoint:
        load_weights(model, checkpoint, torch.float32)
    lengths = [len(prompt) + steps + 1 for prompt in prompts]
    decoder = Decoder(model, lengths, pool_blocks(lengths, None))
    found = generate(decoder, prompts, steps + 1)
    return _decoded(found.prefill_s, list(found.step_s), [list(row) for row in found.token_ids])


def _decoded(prefill_s: float, times: list[float], tokens: list[list[int]]) -> Decoded:
    step_s = float(np.median(times))
    return Decoded(
        prefill_s=prefill_s,
        step_s=step_s,
        tokens_per_s=len(tokens) / step_s,
        peak_mb=peak_mb(),
        token_ids=tuple(tuple(row) for row in tokens),
    )


@dataclass(frozen=True, slots=True)
class Case:
    """Both on the same prompts of ``kv_tokens`` tokens."""

    kv_tokens: int
    transformers: Decoded
    runtime: Decoded

    @property
    def ratio(self) -> float:
        """How many times transformers' tokens per s the runtime gives."""
        return self.runtime.tokens_per_s / self.transformers.tokens_per_s

    @property
    def tokens(self) -> int:
        """How many tokens each gave: the prefill's and one a step, for every sequence."""
        return sum(len(row) for row in self.runtime.token_ids)

    @property
    def same_tokens(self) -> int:
        """How many of them are the same, sequence by sequence and position by position."""
        rows = zip(self.runtime.token_ids, self.transformers.token_ids, strict=True)
        return sum(ours == theirs for row in rows for ours, theirs in zip(*row, strict=True))

    def entry(self) -> dict[str, object]:
        """The case's row in ``result.json``."""
        both = {"transformers": self.transformers, "runtime": self.runtime}
        numbers = {
            f"{name}_{key}": value
            for name, decoded in both.items()
            for key, value in asdict(decoded).items()
            if key != "token_ids"
        }
        same = {"tokens": self.tokens, "same_tokens": self.same_tokens}
        return {"kv_tokens": self.kv_tokens, **numbers, "ratio": self.ratio, **same}


def main(config: RuntimeConfig, folder: Path) -> None:
    """Measure, write and print.

    Raises:
        InputError: a key of the configuration is wrong.
    """
    config.check()
    began = time.perf_counter()
    spec = MODELS[config.model]
    with TemporaryDirectory() as scratch, Console(stderr=True).status("") as status:
        status.update("making random weights")
        weights = Path(scratch) / "weights"
        parameters = in_own_process(_make, weights, spec, config.seed)
        cases = [_measured(weights, config, length, status.update) for length in config.kv_tokens]
    payload = {
        "model": config.model,
        "parameters": parameters,
        "batch": config.batch,
        "threads": config.threads,
        "cases": [case.entry() for case in cases],
    }
    packages = ("torch", "transformers", "safetensors")
    write_result(folder, "benchmarks.runtime", config.seed, payload, packages)
    write_timing(folder, time.perf_counter() - began, {})
    out = console()
    out.print(_table(config, parameters, cases))
    out.print(f"result.json in {folder}")


def _make(folder: Path, spec: ModelSpec, seed: int) -> int:
    from runtime_npu.random_checkpoint import make_checkpoint  # noqa: PLC0415
    from runtime_npu.weights import LAYERS_ONLY, tensor_names  # noqa: PLC0415

    make_checkpoint(folder, spec, seed)
    shapes = tensor_names(spec, LAYERS_ONLY).required.values()
    return sum(int(np.prod(shape)) for shape in shapes)


def _measured(
    weights: Path, config: RuntimeConfig, kv_tokens: int, say: Callable[[str], None]
) -> Case:
    generator = np.random.default_rng(config.seed)
    vocab_size = MODELS[config.model].vocab_size
    prompts = generator.integers(vocab_size, size=(config.batch, kv_tokens)).tolist()
    found = []
    for name, decode in (("transformers", with_transformers), ("runtime", with_runtime)):
        say(f"{kv_tokens} KV tokens: {name}")
        found.append(in_own_process(decode, weights, prompts, config.steps, config.threads))
    return Case(kv_tokens, *found)


def _table(config: RuntimeConfig, parameters: int, cases: list[Case]) -> Table:
    table = Table(
        title=f"greedy decode, {parameters / 1e9:.2f} B parameters in fp32, batch "
        f"{config.batch}, {config.threads} threads: the median step"
    )
    for column in (
        "KV tokens", "transformers ms", "runtime ms", "transformers tokens/s",
        "runtime tokens/s", "ratio", "same tokens", "peak MB (both)",
    ):  # fmt: skip
        table.add_column(column, justify="right")
    for case in cases:
        theirs, ours = case.transformers, case.runtime
        table.add_row(
            str(case.kv_tokens),
            f"{theirs.step_s * 1e3:,.1f}",
            f"{ours.step_s * 1e3:,.1f}",
            f"{theirs.tokens_per_s:.2f}",
            f"{ours.tokens_per_s:.2f}",
            f"{case.ratio:.2f}",
            f"{case.same_tokens} of {case.tokens}",
            f"{theirs.peak_mb:,.0f} {ours.peak_mb:,.0f}",
        )
    return table


if __name__ == "__main__":
    sys.exit(run("benchmark_runtime", RuntimeConfig, main))
