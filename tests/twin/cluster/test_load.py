"""Tokens on ranks: shares, draws, placements, copies, and the files that state them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from clusters import afd, colocated, long_context, simulation, split_heads, with_batch

from hardware_models.errors import InputError
from twin.cluster.files import read_kv_lengths, read_placement, read_token_counts
from twin.cluster.load import Experts, experts_of
from twin.cluster.options import (
    ClusterOptions,
    ExpertLoad,
    Jitter,
    KvLengths,
    LoadKind,
    Placement,
)

STILL = Jitter(matmul=0.0, other=0.0)


def experts(
    load: ExpertLoad, placement: Placement | None = None, redundant: int = 0, seed: int = 0
) -> Experts:
    return experts_of(
        load,
        placement or Placement(),
        layers=3, experts=32, ranks=8, redundant=redundant, rng=np.random.default_rng(seed),
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["balanced", "uniform", "zipf", "lognormal"])
def test_all_tokens_arrive(kind: LoadKind) -> None:
    some = experts(ExpertLoad(kind=kind))
    assert some.shares.sum(axis=1) == pytest.approx(1.0)
    tokens = some.route(1, 1000, np.random.default_rng(1))
    assert tokens.shape == (8, 4)
    assert tokens.sum() == 1000


def test_zipf_shares_fall_with_the_rank() -> None:
    shares = np.sort(experts(ExpertLoad(kind="zipf", exponent=2.0)).shares, axis=1)[:, ::-1]
    assert shares[:, 0] / shares[:, 1] == pytest.approx(4.0)
    assert shares[:, 0] / shares[:, 9] == pytest.approx(100.0)
    flat = experts(ExpertLoad(kind="zipf", exponent=0.0)).shares
    assert flat == pytest.approx(1 / 32)


def test_lognormal_shares_have_the_sigma() -> None:
    load = ExpertLoad(kind="lognormal", sigma=0.8)
    many = experts_of(
        load, Placement(), layers=50, experts=512, ranks=8, redundant=0,
        rng=np.random.default_rng(2),
    ).shares  # fmt: skip
    assert np.log(many).std(axis=1).mean() == pytest.approx(0.8, rel=0.05)


def test_layers_have_hot_experts_of_their_own() -> None:
    hottest = experts(ExpertLoad(kind="zipf")).shares.argmax(axis=1)
    assert len(set(hottest.tolist())) > 1


def test_copies_take_equal_parts() -> None:
    some = experts(ExpertLoad(kind="zipf", exponent=1.5), redundant=8)
    tokens = some.route(0, 5000, np.random.default_rng(3))
    counts = np.random.default_rng(3).multinomial(5000, some.shares[0])
    slots = some.slots[0].reshape(-1)
    for expert, count in enumerate(counts.tolist()):
        held = tokens.reshape(-1)[slots == expert]
        assert held.sum() == count
        assert held.max() - held.min() <= 1
    assert (np.bincount(slots) > 1).any()
    assert np.bincount(slots).argmax() == some.shares[0].argmax()


def test_spread_placement_levels_the_ranks() -> None:
    load = ExpertLoad(kind="zipf", exponent=0.8)
    means = []
    for kind in ("contiguous", "spread"):
        some = experts(load, Placement(kind=kind), redundant=8)
        assert sorted(set(some.slots[0].reshape(-1).tolist())) == list(range(32))
        tokens = some.route(0, 100000, np.random.default_rng(4)).sum(axis=1)
        means.append(tokens.max() / tokens.mean())
    assert means[1] < 1.15 < means[0]


def test_ranks_must_divide_the_experts() -> None:
    with pytest.raises(InputError, match="divisor of 32 \\+ 1"):
        experts(ExpertLoad(), redundant=1)


def test_counts_from_files(tmp_path: Path) -> None:
    counts = np.arange(1, 97).reshape(3, 32)
    as_json = tmp_path / "counts.json"
    as_json.write_text(json.dumps(counts.tolist()))
    plain = tmp_path / "counts.csv"
    plain.write_text("\n".join(",".join(map(str, row)) for row in counts.tolist()))
    long = tmp_path / "long.csv"
    lines = [f"{i},{j},{counts[i, j]}" for i in range(3) for j in range(32)]
    long.write_text("\n".join(["layer,expert,tokens", *lines]))
    for path in (as_json, plain, long):
        assert (read_token_counts(str(path), 3, 32) == counts).all()
        shares = experts(ExpertLoad(kind="file", file=str(path))).shares
        assert shares == pytest.approx(counts / counts.sum(axis=1, keepdims=True))


@pytest.mark.parametrize(
    ("name", "text", "match"),
    [
        ("a.csv", "1,2\n3", "whole numbers"),
        ("a.csv", "1,2\n3,4", "2 x 2.*3 layers x 32"),
        ("a.csv", "", "whole numbers"),
        ("a.csv", "1,x", "whole numbers"),
        ("a.json", "[[1.5]]", "whole numbers"),
        ("a.json", "{", "whole numbers"),
        ("a.csv", "layer,expert,tokens\n0,99,1", "line 2.*experts 0 to 31"),
        ("a.csv", "layer,expert,tokens\n0,1", "line 2.*three whole numbers"),
        ("a.csv", "layer,expert,tokens\n0,1,5", "tokens in each layer"),
    ],
)
def test_bad_counts_are_named(tmp_path: Path, name: str, text: str, match: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(InputError, match=match):
        read_token_counts(str(path), 3, 32)


def test_other_bad_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="can be read"):
        read_kv_lengths(str(tmp_path / "none.csv"), 1)
    path = tmp_path / "numbers.csv"
    path.write_text("5\n0\n")
    with pytest.raises(InputError, match="at least 1"):
        read_kv_lengths(str(path), 2)
    with pytest.raises(InputError, match="3 lengths"):
        read_kv_lengths(str(path), 3)
    path.write_text("0,1,1,0")
    with pytest.raises(InputError, match=r"\[2\].*slot for each"):
        read_placement(str(path), 4, 3)
    with pytest.raises(InputError, match="5 slots"):
        read_placement(str(path), 5, 2)
    with pytest.raises(InputError, match="experts 0 to 0"):
        read_placement(str(path), 4, 1)


def test_placement_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "places.json"
    path.write_text(json.dumps(list(range(31, -1, -1))))
    some = experts(ExpertLoad(kind="uniform"), Placement(kind="file", file=str(path)))
    assert (some.slots[2].reshape(-1) == np.arange(31, -1, -1)).all()


def test_kv_lengths_reach_their_dies(tmp_path: Path) -> None:
    schedule = colocated(16)
    path = tmp_path / "kv.csv"
    lengths = np.arange(1000, 1064)
    path.write_text("\n".join(map(str, lengths.tolist())))
    options = ClusterOptions(kv=KvLengths(file=str(path)), jitter=STILL)
    cluster = simulation(schedule, options, 1)
    draw = cluster.draw(0)
    assert (draw.kv_tokens == np.rint(lengths.reshape(16, 4).mean(axis=1))).all()
    cluster.prepare(draw)
    template = cluster.cluster.template.ops
    at = next(op for op in template if op.name == "layer.0.attention.1.attention")
    rows = cluster.step.flat.arrays.ops["klass"].reshape(16, -1)[:, at.index]
    asked = cluster.step.flat.arrays.rows["asked"][rows]
    assert (np.diff(asked) > 0.0).all()
    assert asked / asked[0] == pytest.approx(draw.kv_tokens / draw.kv_tokens[0])


def test_gmm_reads_the_experts_that_got_tokens() -> None:
    options = ClusterOptions(load=ExpertLoad(kind="zipf", exponent=2.0), jitter=STILL)
    cluster = simulation(afd(1, 128), options, 2)
    sample = cluster.run(0)
    routing = sample.draw.routing
    assert routing is not None
    assert (routing.per_rank.sum(axis=1) == routing.per_rank.sum(axis=1)[0]).all()
    assert routing.active.min() < 8
    template = cluster.cluster.template.ops
    at = next(op for op in template if op.name == "layer.1.moe.gmm2")
    arrays = cluster.step.flat.arrays
    rows = arrays.rows[arrays.ops["klass"].reshape(64, -1)[:, at.index]]
    weights = arrays.read_bytes[rows["first_bytes"]]
    model = cluster.cluster.model
    expert_bytes = model.hidden_size * model.expert_ffn_hidden_size
    assert weights / expert_bytes == pytest.approx(routing.active[1])


@pytest.mark.parametrize(
    ("options", "match"),
    [
        (ClusterOptions(kv=KvLengths(low=5)), "both low and high"),
        (ClusterOptions(kv=KvLengths(low=5, high=4)), "from 1 to 4"),
        (ClusterOptions(kv=KvLengths(low=1, high=4, file="x")), "no file beside"),
        (ClusterOptions(load=ExpertLoad(kind="zipf", exponent=-1.0)), "exponent"),
        (ClusterOptions(load=ExpertLoad(kind="lognormal", sigma=float("nan"))), "sigma"),
        (ClusterOptions(load=ExpertLoad(kind="lognormal", exponent=2.0)), "load.kind=zipf"),
        (ClusterOptions(load=ExpertLoad(kind="zipf", sigma=2.0)), "load.kind=lognormal"),
        (ClusterOptions(load=ExpertLoad(exponent=2.0)), "load.kind=zipf"),
        (ClusterOptions(load=ExpertLoad(kind="file")), "load.file"),
        (ClusterOptions(load=ExpertLoad(file="x")), "load.file"),
        (ClusterOptions(placement=Placement(kind="file")), "placement.file"),
        (ClusterOptions(jitter=Jitter(other=3.0)), "jitter.other"),
    ],
)
def test_options_out_of_range(options: ClusterOptions, match: str) -> None:
    with pytest.raises(InputError, match=match):
        simulation(colocated(16), options, 1)


def test_all_dies_of_a_kvp_group_send_each_token_to_the_same_experts() -> None:
    """12 tokens of 8 real experts, each sent by the 8 dies of its group."""
    schedule = with_batch(long_context(), 12)
    drawn = simulation(schedule, ClusterOptions(load=ExpertLoad(kind="zipf"), jitter=STILL)).draw(3)
    assert drawn.routing is not None
    assert (drawn.routing.tokens % 8 == 0).all()
    assert (drawn.routing.per_rank.sum(axis=1) == 8 * 12 * 8).all()


def test_lengths_of_a_group_are_dealt_over_its_dies(tmp_path: Path) -> None:
    """A KVP die holds its part of the group's lengths, a TP die all of them."""
    path = tmp_path / "lengths.txt"
    lengths = [1000, 2003, 3007, 5]
    path.write_text("\n".join(map(str, lengths)))
    options = ClusterOptions(kv=KvLengths(file=str(path)), jitter=STILL)
    held = simulation(long_context(), options).draw(0).kv_tokens.reshape(4, 8)
    assert held.sum(axis=1).tolist() == lengths
    assert held[3].tolist() == [1] * 5 + [0] * 3
    heads = simulation(with_batch(split_heads(), 4), options).draw(0).kv_tokens.reshape(2, 8)
    assert heads.tolist() == [[1502] * 8, [1506] * 8]
