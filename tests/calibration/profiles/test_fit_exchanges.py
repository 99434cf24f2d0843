"""What ranks exchange, in a fit: their own time is taken, never the wait for the last rank."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from profile_files import Row, collective, kernel, rank_folder

from calibration.profile_fit import fit_profile
from calibration.profiles.collectives import collectives_of, members_of
from calibration.profiles.diagnosis import diagnose
from calibration.profiles.folder import find_ranks
from calibration.profiles.mapping import Context
from calibration.profiles.rows import ProfileRows, rows_of
from calibration.stayed import HOLDS_ZERO, stayed
from hardware_models.errors import InputError
from hardware_models.hardware import Hardware, load_hardware
from hardware_models.ops import Collective, Combine, Dispatch, HcclCollective, RowOp
from hardware_models.ops.alone import alone_us

DIE = load_hardware("a3-752t")
GROUP = "11022204950826225271"


def entry(
    elapsed_us: float, *, transit_us: float = 0.0, waited_us: float = 0.0, moved_mb: float = 0.0
) -> object:
    times = {
        "Start Timestamp(us)": 1.0, "Elapse Time(ms)": elapsed_us / 1e3,
        "Transit Time(ms)": transit_us / 1e3, "Wait Time(ms)": waited_us / 1e3,
        "Synchronization Time(ms)": 0, "Idle Time(ms)": (elapsed_us - transit_us - waited_us) / 1e3,
    }  # fmt: skip
    moved = {"Transit Size(MB)": moved_mb, "Transit Time(ms)": 0}
    return {"Communication Time Info": times, "Communication Bandwidth Info": {"SDMA": moved}}


def rank(
    root: Path,
    number: int,
    collectives: Mapping[str, object],
    rows: Sequence[Row] = (),
    links: Sequence[str] = (),
) -> None:
    spans = [collective(1e4 + 1e3 * i, 900, name) for i, name in enumerate(collectives)]
    output = rank_folder(root, number, [*spans, *rows])
    named = {f"{name}@{GROUP}": told for name, told in collectives.items()}
    steps = {"step7": {"p2p": {}, "collective": named}}
    (output / "communication.json").write_text(json.dumps(steps))
    if links:
        matrix = {
            "step7": {
                "p2p": {},
                "collective": {f"allgather-top1@{GROUP}": {link: {} for link in links}},
            }
        }
        (output / "communication_matrix.json").write_text(json.dumps(matrix))


def found(root: Path, ep: int = 0) -> ProfileRows:
    return rows_of([find_ranks(root)], DIE, 0, ep, "test")


def times(rows: ProfileRows) -> dict[object, float]:
    return {row.specs[0]: row.measured_us for row in rows.rows}


def test_members_are_all_ends_of_a_communicators_links(tmp_path: Path) -> None:
    path = tmp_path / "communication_matrix.json"
    steps = {
        "step1": {
            "p2p": {"send-top1@7": {"2-3": {}}},
            "collective": {"a-top1@5": {"2-2": {}, "2-0": {}}, "b-top1@5": {"2-1": {}, "x": {}}},
        },
        "step2": [],
    }
    path.write_text(json.dumps(steps))
    assert members_of(path) == {"7": {"2", "3"}, "5": {"0", "1", "2"}}
    path.write_text("[]")
    with pytest.raises(InputError, match="communication_matrix"):
        members_of(path)


def test_one_rank_knows_its_group_from_its_links_and_its_time_from_its_parts(
    tmp_path: Path,
) -> None:
    links = [f"0-{end}" for end in range(8)]
    told = {
        "hcom_allGather__1_0_1": entry(900, transit_us=49, waited_us=850, moved_mb=0.7),
        "hcom_allReduce__1_1_1": entry(900, transit_us=160, moved_mb=1.4),
        "hcom_alltoallv__1_2_1": entry(900, transit_us=170, waited_us=30, moved_mb=0.7),
        # Most of this one's time is handshakes, which its transit leaves out.
        "hcom_allGather__1_3_1": entry(900, transit_us=2, moved_mb=0.7),
    }
    rank(tmp_path, 0, told, links=links)
    assert times(found(tmp_path)) == pytest.approx(
        {
            HcclCollective("all_gather", 8, 800_000): 50,
            Collective("all_gather", 8, 100_000): 50,
            HcclCollective("all_reduce", 8, 800_000): 160,
            Collective("all_reduce", 8, 800_000): 160,
            HcclCollective("all_to_all", 8, 800_000): 170,
            Collective("all_to_all", 8, 800_000): 170,
        }
    )


def test_a_collective_on_vector_cores_is_judged_as_steps_have_it(tmp_path: Path) -> None:
    spec = Collective("all_gather", 8, 100_000)
    own_us = alone_us(spec, DIE)
    told = {
        f"hcom_allGather__1_{number}_1": entry(
            900, transit_us=own_us, waited_us=900 - own_us, moved_mb=0.7
        )
        for number in range(2)
    }
    carriers = [kernel(1e4 + 1e3 * n, 900, "hcom_allGather_AivKernel") for n in range(2)]
    rank(tmp_path, 0, told, carriers, links=[f"0-{end}" for end in range(8)])
    rows = found(tmp_path)
    assert times(rows) == pytest.approx({spec: own_us}, rel=1e-3)
    assert rows.launches == 2
    files = find_ranks(tmp_path)
    known = collectives_of(files)
    kinds = diagnose(files, Context(0, 0, known.dies, known.moved_mb, known.own_us), DIE).kinds
    assert set(kinds) == {"collective"}
    assert kinds["collective"].count == 2
    assert kinds["collective"].twin_us == pytest.approx(kinds["collective"].modelled_us, rel=1e-3)


def test_without_a_transit_the_last_rank_tells_the_time_if_all_are_there(tmp_path: Path) -> None:
    name = "hcom_allGather__1_0_1"
    for number, elapsed in enumerate((900, 55, 300)):
        rank(tmp_path / "all", number, {name: entry(elapsed, moved_mb=0.2)}, links=["0-1", "0-2"])
    for number, elapsed in enumerate((900, 300)):
        rank(tmp_path / "some", number, {name: entry(elapsed, moved_mb=0.2)}, links=["0-1", "0-2"])
    assert set(times(found(tmp_path / "all")).values()) == {55}
    assert collectives_of(find_ranks(tmp_path / "some")).dies == {name: 3}
    rows = found(tmp_path / "some")
    assert not rows.rows
    assert "without the wait for others" in rows.left_out[0][0]


def exchange(at_us: float, time_us: float, type_: str = "MoeDistributeDispatchV2") -> Row:
    inputs = {"Input Shapes": '"64,6144;64,8"', "Input Data Types": "DT_BF16;INT32",
              "Input Formats": "ND;ND"}  # fmt: skip
    return kernel(at_us, time_us, type_, **inputs)


def test_a_dispatch_counts_as_its_last_rank_has_it(tmp_path: Path) -> None:
    late = {0: (90, 40), 1: (45, 200), 2: (61, 60), 3: (70, 300)}
    for number, (dispatch, combine) in late.items():
        rows = [exchange(0, dispatch), exchange(500, combine, "MoeDistributeCombineV2")]
        rank_folder(tmp_path, number, rows)
    # Two groups of two: 0 and 1, 2 and 3.
    assert times(found(tmp_path, ep=2)) == {
        Dispatch(512.0, 2, 6144): (45 + 61) / 2,
        Combine(512.0, 2, 6144): (40 + 60) / 2,
    }
    assert found(tmp_path, ep=2).launches == 4
    rows = found(tmp_path, ep=8)
    assert not rows.rows
    assert {reason for reason, _, _ in rows.left_out} == {
        "dispatch: not all of its ranks are here", "combine: not all of its ranks are here",
    }  # fmt: skip


def told_by(die: Hardware) -> dict[str, object]:
    """All-gathers over 8 dies with the times that ops of a step would have on ``die``."""
    told = {}
    for number, payload in enumerate((2_000, 8_000, 30_000, 60_000, 120_000, 250_000)):
        own_us = alone_us(Collective("all_gather", 8, payload), die)
        told[f"hcom_allGather__1_{number}_1"] = entry(
            2000, transit_us=own_us, waited_us=2000 - own_us, moved_mb=7 * payload / 1e6
        )
    return told


def test_collectives_move_the_parameters_of_steps(tmp_path: Path) -> None:
    slower = DIE.with_values({"collective_latency_us": 1.35 * DIE["collective_latency_us"]})
    rank(tmp_path, 0, told_by(slower), links=[f"0-{end}" for end in range(8)])
    rows = found(tmp_path).rows
    assert {row.kind for row in rows} == {"collective", "hccl_collective"}
    moved = {p.name: p for p in fit_profile(rows, DIE, "test").parameters if p.has_moved}
    assert 0.15 < moved["collective_latency_us"].change < 0.4


def test_launches_that_no_parameter_explains_move_none(tmp_path: Path) -> None:
    strange = DIE.with_values({"collective_latency_us": 50 * DIE["collective_latency_us"]})
    rank(tmp_path, 0, told_by(strange), links=[f"0-{end}" for end in range(8)])
    rows = found(tmp_path).rows
    fit = fit_profile(rows, DIE, "test")
    assert fit.misfits["collective_latency_us"] > 0.5
    assert not [p.name for p in fit.parameters if p.has_moved]
    assert (
        fit.hardware.parameters["collective_latency_us"] == DIE.parameters["collective_latency_us"]
    )
    reasons = {row.name: row.reason for row in stayed(fit, rows)}
    assert "still misses the launches of collective" in reasons["collective_latency_us"]
    assert reasons["collective_group_exponent"] == HOLDS_ZERO


def test_what_is_written_is_the_fit(tmp_path: Path) -> None:
    """Parameters that learned little, but moved beside those that did, are written too."""
    slow = DIE.with_values({"add_head_us": 2 * DIE["add_head_us"], "add_gbps": 700.0})
    rows = []
    for m, width in [(8, 1024), (48, 6144), (200, 6144), (960, 6144), (4096, 6144), (9000, 2048)]:
        shape = {
            "Input Shapes": f'"{m},{width};{m},{width}"',
            "Input Data Types": "DT_BF16;DT_BF16",
            "Input Formats": "ND;ND",
        }
        time_us = alone_us(RowOp("add", m, width), slow)
        rows.append(kernel(1e3 * len(rows), f"{time_us:.3f}", "Add", **shape))
    rank_folder(tmp_path, 0, rows)
    found_rows = found(tmp_path).rows
    assert len(found_rows) == 6
    fit = fit_profile(found_rows, DIE, "test")
    (errors,) = fit.errors
    written = sorted(
        abs(row.predicted_us(fit.hardware) / row.measured_us - 1) for row in found_rows
    )
    assert sum(written[2:4]) / 2 == pytest.approx(errors.fitted, abs=0.005)


def test_a_diagnosis_holds_the_twin_against_a_collectives_own_time(tmp_path: Path) -> None:
    told = {
        "hcom_allGather__1_0_1": entry(900, transit_us=50, waited_us=850, moved_mb=0.7),
        "hcom_allGather__1_1_1": entry(900, moved_mb=0.7),
    }
    rank(tmp_path, 0, told, links=[f"0-{end}" for end in range(8)])
    files = find_ranks(tmp_path)
    known = collectives_of(files)
    context = Context(0, 0, known.dies, known.moved_mb, known.own_us)
    kind = diagnose(files, context, DIE).kinds["hccl_collective"]
    assert kind.total_us == 1800
    # The other one's time without its waits is not known.
    assert kind.modelled_us == pytest.approx(50)
    assert kind.twin_us == pytest.approx(alone_us(HcclCollective("all_gather", 8, 800_000), DIE))


@given(
    st.dictionaries(
        st.text(max_size=4),
        st.recursive(
            st.none() | st.integers() | st.text(max_size=4),
            lambda inner: st.dictionaries(
                st.sampled_from(["collective", "a@1", "1-2", "1-1-1", "-"]) | st.text(max_size=3),
                inner,
                max_size=4,
            ),
            max_leaves=12,
        ),
    )
)
def test_any_object_is_a_matrix_of_links(
    tmp_path_factory: pytest.TempPathFactory, data: dict[str, object]
) -> None:
    path = tmp_path_factory.mktemp("f") / "communication_matrix.json"
    path.write_text(json.dumps(data))
    for ends in members_of(path).values():
        assert all(end.isdigit() for end in ends)


@given(st.binary(max_size=60).filter(lambda junk: junk.strip()[:1] != b"{"))
def test_any_bytes_are_a_matrix_or_refused_with_the_file(
    tmp_path_factory: pytest.TempPathFactory, junk: bytes
) -> None:
    path = tmp_path_factory.mktemp("f") / "communication_matrix.json"
    path.write_bytes(junk)
    with pytest.raises(InputError) as caught:
        members_of(path)
    assert f"{path}:" in str(caught.value)
