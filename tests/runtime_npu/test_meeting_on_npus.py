"""Ranks on NPUs: which device each takes, over what they exchange, and experts' own groups."""

from __future__ import annotations

import sys
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist

from hardware_models.errors import InputError
from runtime_npu.parallel import rendezvous
from runtime_npu.parallel.rendezvous import Meeting, met, torchrun_meeting
from runtime_npu.parallel.world import World
from twin.deployment import Deployment, RoleDeployment


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What torch_npu and torch.distributed were told."""
    told: dict[str, Any] = {}
    npu = SimpleNamespace(set_device=lambda device: told.update(device=device))
    monkeypatch.setitem(sys.modules, "torch_npu", SimpleNamespace(npu=npu))

    def init(backend: str, **words: Any) -> None:
        told.update(backend=backend, **words)

    monkeypatch.setattr(dist, "init_process_group", init)
    monkeypatch.setattr(dist, "destroy_process_group", lambda: told.update(ended=True))
    return told


@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE", "LOCAL_RANK"])
def test_what_torchrun_would_not_say_is_refused_by_name(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for one in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.setenv(one, "x" if one == name else "2")
    with pytest.raises(InputError) as caught:
        torchrun_meeting(on_npus=True)
    assert (caught.value.field, caught.value.value) == (name, "x")
    monkeypatch.delenv(name)
    if name == "LOCAL_RANK":
        with pytest.raises(InputError, match="LOCAL_RANK: got 'unset'"):
            torchrun_meeting(on_npus=True)


def test_torchruns_local_rank_is_the_device(
    noted: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in (("RANK", "37"), ("WORLD_SIZE", "128"), ("LOCAL_RANK", "5")):
        monkeypatch.setenv(name, text)
    meeting = torchrun_meeting(on_npus=True)
    assert meeting == Meeting(37, 128, None, 5)
    assert torchrun_meeting() == Meeting(37, 128, None, None)
    with met(meeting):
        assert (noted["device"], noted["backend"]) == (5, "cpu:gloo,npu:hccl")
    assert noted["ended"]
    # A rank that compiles must not be taken for lost before HCCL itself gives up.
    assert noted["timeout"] > timedelta(seconds=1836)


def test_a_cpu_takes_no_device(noted: dict[str, Any]) -> None:
    with met(Meeting(0, 2, None)):
        assert "device" not in noted
    assert noted["backend"] == "gloo"
    assert noted["timeout"] == timedelta(seconds=rendezvous.EXCHANGE_S)


def test_experts_never_share_a_communicator(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[int, ...]] = []

    def group(ranks: list[int], **_: object) -> str:
        made.append(tuple(ranks))
        return f"group {len(made)}"

    monkeypatch.setattr(dist, "new_group", group)
    monkeypatch.setattr(dist, "get_backend_config", lambda: "cpu:gloo")
    role = RoleDeployment(dies=4, dense_tp=4, o_proj_tp=2, ep=4)
    deployment = Deployment(
        hardware="a3-752t", quantisation="bf16", graph_mode="ge_graph", roles={"colocated": role}
    )
    groups = World(deployment, 1).groups
    assert groups["ep"].members == groups["dense_tp"].members == (0, 1, 2, 3)
    assert groups["ep"].handle != groups["dense_tp"].handle
    assert made.count((0, 1, 2, 3)) == 2


def test_only_the_experts_pay_for_the_buffer_of_their_exchange(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    configs: list[dict[str, object]] = []

    def group(ranks: list[int], pg_options: Any) -> int:
        configs.append(pg_options.hccl_config)
        return len(configs)

    hccl = SimpleNamespace(ProcessGroupHCCL=SimpleNamespace(Options=SimpleNamespace))
    monkeypatch.setitem(sys.modules, "torch_npu._C._distributed_c10d", hccl)
    monkeypatch.setattr(dist, "new_group", group)
    monkeypatch.setattr(dist, "get_backend_config", lambda: "cpu:gloo,npu:hccl")
    role = RoleDeployment(dies=4, o_proj_tp=2, ep=4)
    World(
        Deployment(
            hardware="a3-752t",
            quantisation="bf16",
            graph_mode="ge_graph",
            roles={"colocated": role},
        ),
        1,
    )
    by_name = {config["group_name"]: config.get("hccl_buffer_size") for config in configs}
    assert by_name == {"ep_0_3": None, "group_0_1": 200, "group_2_3": 200}
