"""The compile cache: what may be used again, and a word on why anything may not."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from hardware_models.errors import InputError
from runtime_npu.npu.compile_cache import (
    ENTRY,
    MANIFEST,
    CompileCache,
    CompiledPass,
    source_digest,
)

INPUTS = {"step inputs": "(4,) torch.int64", "numbers": "4"}
PASS = CompiledPass("kernel = print", (0, 2, 5), ({"name": "embed", "waits": ["add"]},))
SUBJECT = {"schedule": "format: 1", "model": "ModelSpec(...)"}
VERSIONS = {"torch": "2.13.0", "torch_npu": "2.13.0", "CANN": "8.5.0", "longcat-twin": "0.1.0 ab"}


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def cache(tmp_path: Path, said: list[str]) -> CompileCache:
    return CompileCache(tmp_path, SUBJECT, VERSIONS, rank=3, say=said.append)


def keep(cache: CompileCache) -> Path:
    cache.save("main", "main", PASS)
    cache.seal("main", "main", INPUTS)
    return cache.folder("main", "main")


def test_what_was_kept_comes_back(cache: CompileCache, said: list[str]) -> None:
    assert cache.load("main", "main", INPUTS) is None
    keep(cache)
    assert cache.load("main", "main", INPUTS) == PASS
    assert said == []


def test_parts_schedules_models_and_ranks_have_folders_of_their_own(cache: CompileCache) -> None:
    others = (
        replace(cache, subject={**SUBJECT, "schedule": "format: 1\nmodel: x"}),
        replace(cache, subject={**SUBJECT, "model": "ModelSpec(num_layers=2)"}),
        replace(cache, rank=4),
    )
    folders = {each.folder("main", "main") for each in (cache, *others)}
    assert len({*folders, cache.folder("mtp", "main"), cache.folder("main", "x")}) == 6
    keep(cache)
    for other in others:
        assert other.load("main", "main", INPUTS) is None
    assert cache.load("mtp", "main", INPUTS) is None
    assert cache.load("main", "main", INPUTS) == PASS


@pytest.mark.parametrize("key", VERSIONS)
def test_another_version_is_stale_and_says_which(
    key: str, cache: CompileCache, said: list[str]
) -> None:
    folder = keep(cache)
    later = replace(cache, versions={**VERSIONS, key: "9.9"})
    assert later.load("main", "main", INPUTS) is None
    assert said == [
        f"compile cache: main main of rank 3: stale: {key} was {VERSIONS[key]}, now 9.9; "
        "compiling anew"
    ]
    assert not folder.exists()


def test_other_inputs_are_stale(cache: CompileCache, said: list[str]) -> None:
    keep(cache)
    assert cache.load("main", "main", {**INPUTS, "numbers": "8"}) is None
    keep(cache)
    assert cache.load("main", "main", {**INPUTS, "step inputs": "x" * 500}) is None
    keep(cache)
    assert cache.load("main", "main", {"numbers": "4"}) is None
    assert "stale: numbers was 4, now 8" in said[0]
    assert "stale: another step inputs" in said[1]
    assert "step inputs was (4,) torch.int64, now None" in said[2]


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def without(key: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        manifest = json.loads((folder / MANIFEST).read_text())
        del manifest[key]
        (folder / MANIFEST).write_text(json.dumps(manifest))

    return change


BROKEN: dict[str, tuple[Callable[[Path], None], str]] = {
    "a flipped bit": (lambda folder: flip(folder / ENTRY), f"{ENTRY} is corrupted"),
    "a cut file": (
        lambda folder: (folder / ENTRY).write_bytes((folder / ENTRY).read_bytes()[:-1]) and None,
        f"{ENTRY} is corrupted",
    ),
    "a missing file": (lambda folder: (folder / ENTRY).unlink(), f"{ENTRY} is missing"),
    "a file of CANN's changed": (lambda folder: flip(folder / "ge" / "graph.om"), "corrupted"),
    "a file of CANN's gone": (lambda folder: (folder / "ge" / "graph.om").unlink(), "missing"),
    "a file that nobody wrote": (
        lambda folder: (folder / "kernel.so").touch(),
        "kernel.so is unknown",
    ),
    "a folder open to others": (
        lambda folder: folder.chmod(0o777),
        "may have been written by somebody else",
    ),
    "no manifest": (lambda folder: (folder / MANIFEST).unlink(), "was never finished"),
    "half a manifest": (
        lambda folder: (folder / MANIFEST).write_text('{"files": {') and None,
        "manifest.json is corrupted",
    ),
    "a manifest without versions": (without("versions"), "manifest.json is corrupted"),
    "a manifest without files": (without("files"), "manifest.json is corrupted"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_what_was_changed_on_the_disk_is_never_used(
    what: str, cache: CompileCache, said: list[str]
) -> None:
    change, word = BROKEN[what]
    cache.save("main", "main", PASS)
    folder = cache.folder("main", "main")
    (folder / "ge").mkdir()
    (folder / "ge" / "graph.om").write_bytes(b"compiled by GE")
    cache.seal("main", "main", INPUTS)
    assert cache.load("main", "main", INPUTS) == PASS
    change(folder)
    assert cache.load("main", "main", INPUTS) is None
    assert len(said) == 1
    assert word in said[0]
    assert not folder.exists()
    keep(cache)
    assert cache.load("main", "main", INPUTS) == PASS


def test_a_killed_compilation_is_not_used(cache: CompileCache, said: list[str]) -> None:
    cache.save("main", "main", PASS)
    assert cache.load("main", "main", INPUTS) is None
    assert "was never finished" in said[0]


def test_a_root_that_is_a_file_is_the_users_fault(tmp_path: Path, said: list[str]) -> None:
    (tmp_path / "file").touch()
    cache = CompileCache(tmp_path / "file", SUBJECT, VERSIONS, rank=0, say=said.append)
    with pytest.raises(InputError, match="compile_cache"):
        cache.save("main", "main", PASS)


def test_the_source_digest_follows_every_file(tmp_path: Path) -> None:
    package = tmp_path / "package"
    (package / "deep").mkdir(parents=True)
    (package / "deep" / "module.py").write_text("x = 1\n")
    before = source_digest([package])
    assert before == source_digest([package])
    (package / "deep" / "module.py").write_text("x = 2\n")
    changed = source_digest([package])
    (package / "deep" / "module.py").rename(package / "module.py")
    assert len({before, changed, source_digest([package])}) == 3
