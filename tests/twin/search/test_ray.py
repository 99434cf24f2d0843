"""The executor ray on a real local cluster of two nodes, and what is said where Ray is missing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hardware_models.errors import InputError, MachineError
from twin.cli import run
from twin.search import ray_nodes
from twin.search.__main__ import main
from twin.search.config import SearchConfig
from twin.search.ray_nodes import RayNodes
from twin.search.shards import POINTS, SHARDS

# One structure in several tasks, so that both nodes explore.
SPACE = ["scenario=afd", "search.knobs.ratio.levels=[1]", "search.knobs.micro_batches.levels=[1]"]
SPACE += ["search.knobs.mla_1.levels=[0.5,1]", "draws=0", "top=1"]


def search(folder: Path, *arguments: str) -> int:
    return run("search", SearchConfig, main, [*SPACE, *arguments, f"output={folder}"])


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes of one CPU each, which this process is connected to."""
    ray = pytest.importorskip("ray", reason="Ray is not installed (the extra cluster)")
    utils = pytest.importorskip("ray.cluster_utils")
    node = {"num_cpus": 1, "include_dashboard": False}
    made = utils.Cluster(initialize_head=True, head_node_args=node)
    made.add_node(num_cpus=1)
    here = {"env_vars": {"PYTHONPATH": str(Path(__file__).parent)}}
    ray.init(made.address, log_to_driver=False, runtime_env=here)
    yield made
    ray.shutdown()
    made.shutdown()


def node_of(item: int) -> str:
    import ray  # noqa: PLC0415 - there only where the test runs

    time.sleep(0.2)
    return str(ray.get_runtime_context().get_node_id())


def refused(value: int) -> int:
    if value:
        raise InputError("field", value, "nothing", "source.yaml")
    return value


def test_two_nodes_write_the_bytes_of_one_process(cluster: Any, tmp_path: Path) -> None:
    with RayNodes(None) as nodes:
        assert nodes.count == 2
        assert len(set(nodes.map(node_of, range(10)))) == 2
        with pytest.raises(InputError, match=r"source.yaml: field: got 1; allowed: nothing"):
            list(nodes.map(refused, range(8)))
    assert search(tmp_path / "ray", "search.executor=ray") == 0
    assert search(tmp_path / "one", "workers=1") == 0
    names = sorted(path.name for path in (tmp_path / "one" / SHARDS).iterdir())
    assert len(names) > 2
    assert names == sorted(path.name for path in (tmp_path / "ray" / SHARDS).iterdir())
    for name in ("result.json", "schedule.yaml", POINTS, *(f"{SHARDS}/{name}" for name in names)):
        assert (tmp_path / "ray" / name).read_bytes() == (tmp_path / "one" / name).read_bytes()


def test_a_node_of_another_version_is_refused(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_nodes, "code_version", lambda: "longcat-twin 0.0.0")
    with RayNodes(1) as nodes, pytest.raises(MachineError, match=r"search longcat-twin 0\.0\.0"):
        list(nodes.map(abs, [1, 2]))


@pytest.mark.nightly
def test_what_a_lost_node_was_at_is_done_elsewhere(cluster: Any) -> None:
    lost = cluster.add_node(num_cpus=1)
    with RayNodes(None) as nodes:
        results = nodes.unordered(node_of, range(40))
        found = [next(results) for _ in range(5)]
        cluster.remove_node(lost, allow_graceful=False)
        found += results
    assert sorted(place for place, _ in found) == list(range(40))


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1"])
def test_a_cluster_that_is_not_there_is_exit_4_at_once(
    address: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(ray_nodes, "import_module", lambda _: NoRay())
    monkeypatch.setenv("RAY_ADDRESS", address)
    assert search(tmp_path, "search.executor=ray") == 4
    assert f"RAY_ADDRESS {address} cannot be reached" in capsys.readouterr().err


class NoRay:
    """Ray before it is connected; anything more is not asked for."""

    def is_initialized(self) -> bool:
        return False


def test_a_missing_ray_is_exit_4_and_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(name: str) -> None:
        raise ImportError(name)

    prepared: list[int | None] = []
    monkeypatch.setattr(ray_nodes, "import_module", missing)
    monkeypatch.setattr("twin.search.__main__.prepare", prepared.append)
    assert search(tmp_path, "search.executor=ray") == 4
    assert not prepared, "processes that nobody will use"
    assert "pip install 'longcat-twin[cluster]'" in capsys.readouterr().err
