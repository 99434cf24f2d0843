"""What a step brings from the host to the device, in the forms that kernels read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import torch
from torch.nn.functional import pad

from runtime_npu.batch import Step
from runtime_npu.npu.forms import Forms


@dataclass(frozen=True, slots=True)
class StepInputs:
    """The tensors of a step, still on the host.

    ``hosts`` are the model's own, ``forms`` [same length] what stands for each on the device:
    equal shapes in every step.  ``row_ends`` and ``kv_lengths`` are numbers, batch by batch:
    each sequence's last row (the same in every step), and its tokens.
    """

    hosts: tuple[torch.Tensor, ...]
    forms: tuple[torch.Tensor, ...]
    row_ends: tuple[tuple[int, ...], ...]
    kv_lengths: tuple[tuple[int, ...], ...]

    @property
    def numbers(self) -> tuple[tuple[int, ...], ...]:
        """The KV lengths of each batch that are not on the device."""
        return self.kv_lengths if len(self.forms) == len(self.hosts) else ()


def step_inputs(step: Step, table_width: int, *, lengths_on_device: bool) -> StepInputs:
    """The inputs of ``step``, whose block tables are padded to ``table_width`` blocks.

    ``lengths_on_device``: the two tensors of lengths of each batch come last.
    """
    hosts = [step.tokens, step.last_rows]
    forms = list(hosts)
    for batch in step.batches:
        wider = table_width - batch.block_table.shape[1]
        hosts += [batch.slots, batch.block_table, batch.rope.cos, batch.rope.sin]
        forms += [
            batch.slots,
            pad(batch.block_table.to(torch.int32), (0, wider)),
            # Kernels turn halves of a head, so every angle is there twice.
            batch.rope.cos.repeat(1, 2),
            batch.rope.sin.repeat(1, 2),
        ]
    ends = tuple(tuple(accumulate(batch.rows)) for batch in step.batches)
    lengths = tuple(batch.kv_lengths for batch in step.batches)
    if lengths_on_device:
        forms += [torch.tensor(own) for pair in zip(ends, lengths, strict=True) for own in pair]
    return StepInputs(tuple(hosts), tuple(forms), ends, lengths)


def bind_step(
    forms: Forms,
    step: Step,
    inputs: StepInputs,
    placed: Sequence[torch.Tensor],
    tokens_of: Sequence[Sequence[int | torch.SymInt]],
) -> Step:
    """Bind ``placed``, which are ``inputs.forms`` on the device; the step for the model.

    ``tokens_of`` are the KV lengths of each batch as a graph should know them, where they are
    not on the device.
    """
    for host, form in zip(inputs.hosts, placed, strict=False):
        forms.bind(host, form)
    on_device = placed[len(inputs.hosts) :]
    for number, batch in enumerate(step.batches):
        if on_device:
            forms.bind_lengths(batch.block_table, *on_device[2 * number :][:2])
        else:
            forms.bind_lengths(batch.block_table, inputs.row_ends[number], tokens_of[number])
    return replace(step, tokens=forms.of(step.tokens), last_rows=forms.of(step.last_rows))
