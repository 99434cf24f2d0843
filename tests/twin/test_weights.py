"""Sizes of weights against the published bytes per die and against the model's own counts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hardware_models.errors import InputError
from twin.deployment import Deployment, Quantisation, Role, RoleDeployment
from twin.models import load_model
from twin.names import consumer, layer_weights, main_ops, outside_weights
from twin.schedule_io import load_schedule
from twin.weights import role_weights, weight_bytes

MIB = 1024**2
MODEL = load_model("longcat-flash-560b")
COLOCATED = load_schedule("recipe_colocated").deployment
AFD = load_schedule("recipe_afd").deployment


def one_die(quantisation: Quantisation) -> Deployment:
    return replace(
        COLOCATED, quantisation=quantisation, roles={"colocated": RoleDeployment(dies=1)}
    )


def total(deployment: Deployment, role: Role, next_n: int = 0, redundant: int = 0) -> int:
    items = role_weights(MODEL, deployment, role, next_n, redundant)
    return sum(item.total_bytes for item in items)


# Bytes per die of the recipe at EP128, in MiB (facts of the published deployment).
@pytest.mark.parametrize(
    ("weight", "mib"),
    [
        ("attention.0.q_a", 18),
        ("attention.1.q_b", 36),
        ("attention.0.kv_a", 6.75),
        ("attention.0.uk", 8),
        ("attention.1.uv", 8),
        ("attention.1.o_proj", 12),
        ("dense.0.gate_up", 18),
        ("dense.1.down", 9),
        ("moe.router", 18),
        ("moe.w13", 4 * 24),
        ("moe.w2", 4 * 12),
        ("lm_head", 96),
        ("mtp.attention.q_b", 36),
        ("mtp.dense.gate_up", 18),
        ("mtp.eh_proj", 144),
    ],
)
def test_a_die_of_the_recipe_holds_the_published_bytes(weight: str, mib: float) -> None:
    assert weight_bytes(MODEL, COLOCATED, weight) == mib * MIB


def test_half_the_dies_hold_twice_the_experts() -> None:
    assert weight_bytes(MODEL, AFD, "moe.w2") == 96 * MIB
    assert weight_bytes(MODEL, AFD, "moe.w13") == 192 * MIB


def test_redundant_experts_add_whole_experts_to_a_die() -> None:
    assert weight_bytes(MODEL, COLOCATED, "moe.w2", redundant_experts=128) == 5 * 12 * MIB


def test_quantisation_sets_the_element_size_and_leaves_the_router_in_fp32() -> None:
    sizes = {
        quantisation: {
            weight: weight_bytes(MODEL, one_die(quantisation), weight)
            for weight in ("attention.0.q_a", "dense.0.down", "moe.w2", "mtp.dense.down")
        }
        for quantisation in ("fp32", "bf16", "w8a8")
    }
    for weight in sizes["fp32"]:
        assert sizes["fp32"][weight] == 2 * sizes["bf16"][weight]
        narrower = 1 if weight == "attention.0.q_a" else 2
        assert sizes["bf16"][weight] == narrower * sizes["w8a8"][weight]
    routers = {weight_bytes(MODEL, one_die(q), "moe.router") for q in ("fp32", "bf16", "w8a8")}
    assert routers == {4 * MODEL.hidden_size * MODEL.router_width}


def test_attention_tp_splits_heads_and_nothing_else() -> None:
    sizes = RoleDeployment(dies=8, attention_tp=8, o_proj_tp=8, ep=8)
    split = replace(one_die("bf16"), roles={"colocated": sizes})
    for weight, parts in (("q_b", 8), ("uk", 8), ("uv", 8), ("o_proj", 8), ("q_a", 1), ("kv_a", 1)):
        name = f"attention.0.{weight}"
        whole = weight_bytes(MODEL, one_die("bf16"), name)
        assert weight_bytes(MODEL, split, name) * parts == whole


def test_the_whole_model_has_its_published_number_of_parameters() -> None:
    items = role_weights(MODEL, one_die("bf16"), "colocated")
    in_fp32 = ("moe.router", "moe.correction_bias")
    parameters = sum(i.total_bytes // (4 if i.name in in_fp32 else 2) for i in items)
    assert parameters == pytest.approx(560.66e9, rel=1e-4)


def test_int8_weights_bring_their_scales_into_memory_but_not_into_a_prefetch() -> None:
    items = {item.name: item for item in role_weights(MODEL, COLOCATED, "colocated", next_n=2)}
    gate_up, down = items["dense.gate_up"], items["dense.down"]
    assert gate_up.count == down.count == 56
    assert gate_up.bytes - weight_bytes(MODEL, COLOCATED, "dense.0.gate_up") == 2 * 12288 // 8 * 4
    # A row-parallel weight has all output channels on every die.
    assert down.bytes - weight_bytes(MODEL, COLOCATED, "dense.0.down") == 6144 * 4
    assert items["moe.w13"].bytes == 4 * (24 * MIB + 2 * 2048 * 4)
    assert items["attention.q_a"].bytes == 18 * MIB


def test_mtp_weights_are_there_only_where_drafts_are() -> None:
    without = role_weights(MODEL, COLOCATED, "colocated")
    assert not any(item.name.startswith("mtp.") for item in without)
    mtp = total(COLOCATED, "colocated", next_n=1) - total(COLOCATED, "colocated")
    # Attention (bf16), dense FFN / 8 (int8), eh_proj and an embedding of its own.
    assert mtp == pytest.approx((88.75 + 27 + 144 + 1536) * MIB, rel=1e-3)


def test_afd_roles_share_the_model_without_overlap() -> None:
    attention = {item.name for item in role_weights(MODEL, AFD, "attention", next_n=2)}
    ffn = {item.name for item in role_weights(MODEL, AFD, "ffn", next_n=2)}
    whole = {item.name for item in role_weights(MODEL, COLOCATED, "colocated", next_n=2)}
    assert attention & ffn == set()
    assert attention | ffn == whole


def test_layers_of_the_recipe_fill_a_die_as_published() -> None:
    """EP128: 10.8 GiB, attention role: 6.3 GiB, without embeddings, lm_head and MTP."""
    outside = ("embed", "lm_head", "final_norm")

    def layers_gib(deployment: Deployment, role: Role) -> float:
        items = role_weights(MODEL, deployment, role)
        return sum(i.total_bytes for i in items if i.name not in outside) / 1024**3

    assert layers_gib(COLOCATED, "colocated") == pytest.approx(10.8, abs=0.05)
    assert layers_gib(AFD, "attention") == pytest.approx(6.3, abs=0.05)


@pytest.mark.parametrize(
    "weight",
    ["moe.w3", "attention.2.q_a", "mtp.moe.w13", "mtp.lm_head", "eh_proj", "dense.0", "", "next"],
)
def test_a_weight_that_does_not_exist_is_named(weight: str) -> None:
    with pytest.raises(InputError) as caught:
        weight_bytes(MODEL, COLOCATED, weight)
    assert caught.value.value == weight
    assert "moe.w13" in caught.value.allowed


@pytest.mark.parametrize(
    ("deployment", "role"), [(COLOCATED, "colocated"), (AFD, "attention"), (AFD, "ffn")]
)
def test_every_prefetchable_weight_has_a_size_and_an_op_that_reads_it(
    deployment: Deployment, role: Role
) -> None:
    ops = (*main_ops(deployment, role), *main_ops(AFD, "ffn"))
    for weight in layer_weights(deployment, role):
        assert weight_bytes(MODEL, deployment, weight) > 0
        assert consumer(weight) in ops
    for weight in outside_weights(role, next_n=2):
        assert weight_bytes(MODEL, deployment, weight) > 0
