"""The stand-ins: the real wheel loads, what is launched is logged, and torch stays itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hardware_models.errors import MachineError
from runtime_npu.machine.devices import ask, check_devices
from runtime_npu.npu_ops import NEEDED_OPS
from runtime_npu.standins import build, wheel
from runtime_npu.standins.__main__ import main
from runtime_npu.standins.build import _key, built_standins, kernel_source, runtime_source
from runtime_npu.standins.process import DEVICES, LOG, run_on_standins
from runtime_npu.standins.wheel import find_wheel


@pytest.mark.usefixtures("standins")
def test_the_real_wheel_loads_with_dies_cores_and_every_op() -> None:
    words = [*NEEDED_OPS, "npu_no_such_op"]
    done = run_on_standins("runtime_npu.machine.probe", words, environment={DEVICES: "16"})
    probed = ask([sys.executable, "-c", f"print({done.stdout.splitlines()[-1]!r})"])
    assert check_devices(probed).found == "16 x Ascend910_9391"
    assert {(device.aic, device.aiv) for device in probed.devices} == {(24, 48)}
    assert probed.missing_ops == ("npu_no_such_op",)


@pytest.mark.usefixtures("standins", "here")
def test_launches_events_and_limits_are_logged_in_order(tmp_path: Path) -> None:
    log = tmp_path / "log"
    done = run_on_standins("child_streams", environment={LOG: str(log)})
    assert done.stdout.splitlines()[-1] == "(4, 128) 0.0"
    lines = [line.split() for line in log.read_text().splitlines()]
    streams = {line[2]: line[1] for line in lines if line[0] == "launch"}
    assert streams["aclnnSwiGlu"] != streams["aclnnDynamicQuantV2"]
    words = [(line[0], line[-1]) for line in lines]
    recorded = next(line for line in lines if line[0] == "record")
    waited = next(line for line in lines if line[0] == "wait")
    assert recorded[2] == waited[2]
    assert (recorded[1], waited[1]) == (streams["aclnnSwiGlu"], streams["aclnnDynamicQuantV2"])
    assert words.index(("launch", "aclnnSwiGlu")) < lines.index(recorded)
    assert lines.index(waited) < words.index(("launch", "aclnnDynamicQuantV2"))
    side = streams["aclnnDynamicQuantV2"]
    assert ["limit", side, "cube", "8"] in lines
    assert ["limit", side, "vector", "16"] in lines
    # Reading a tensor on the host waits for its stream.
    assert ["sync", streams["aclnnSwiGlu"]] in lines


@pytest.mark.usefixtures("standins")
def test_an_ordinary_import_of_torch_knows_nothing_of_it() -> None:
    code = (
        "import sys, torch\n"
        "sys.exit('torch_npu' in sys.modules or hasattr(torch, 'npu')"
        " or torch._C._get_privateuse1_backend_name() == 'npu')"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_they_are_built_once(standins: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("built again")

    monkeypatch.setattr(build, "_build", refuse)
    assert built_standins() == standins


@pytest.mark.usefixtures("standins")
def test_the_key_follows_wheel_compiler_and_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fake(record: str) -> Path:
        info = tmp_path / record / f"torch_npu-{wheel.RELEASE}.dist-info"
        info.mkdir(parents=True)
        (info / "RECORD").write_text(record)
        return info.parent

    one, other = fake("one"), fake("other")
    assert _key(one) == _key(one) != _key(other)
    before = _key(one)
    monkeypatch.setattr(build, "_SOURCES", ("build.py",))
    assert _key(one) != before


def test_a_machine_without_the_wheel_is_told_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LONGCAT_TWIN_CACHE", str(tmp_path))
    for look in (find_wheel, built_standins):
        with pytest.raises(MachineError, match="runtime_npu.standins"):
            look()


@pytest.mark.parametrize("lacking", build.TOOLS)
@pytest.mark.usefixtures("standins")
def test_a_machine_without_a_tool_is_told_which(
    lacking: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        build.shutil, "which", lambda tool: None if tool == lacking else f"/usr/bin/{tool}"
    )
    with pytest.raises(MachineError, match=lacking):
        built_standins()


def test_another_kind_of_machine_is_refused(
    standins: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert standins.is_dir()
    monkeypatch.setattr(build.platform, "machine", lambda: "aarch64")
    with pytest.raises(MachineError, match="x86_64"):
        built_standins()


def test_fetching_that_fails_leaves_nothing_and_exits_4(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LONGCAT_TWIN_CACHE", str(tmp_path))
    monkeypatch.setattr(wheel, "PACKAGES", ("--no-index", "torch_npu==0.0.0"))
    assert main() == 4
    assert "pip cannot install" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_generated_source_defines_every_symbol_once() -> None:
    source = runtime_source(["aclrtMalloc", "aclrtNew", "_ZN2ge12AscendStringC1EPKc", "_ZN2ge1xEv"])
    assert source.count("int aclrtMalloc(") == 1
    assert '"aclrtNew"' in source
    assert '"_ZN2ge1xEv"' in source
    assert source.count('"_ZN2ge12AscendStringC1EPKc"') == 1
    assert "int aclnnAddGetWorkspaceSize(void)" in kernel_source(["aclnnAdd"])
