"""A run folder used again: what another search left goes, what it did not write stays."""

from __future__ import annotations

from pathlib import Path

from twin.search.run_folder import remove_others


def test_what_stands_beside_another_result_is_removed(tmp_path: Path) -> None:
    gone = ("schedule.yaml", "report.html", "trace.json", "timing.json", "points.parquet")
    stay = ("result.json", "sealed.json", "report.html.bak", "notes.md")
    for name in (*gone, *stay):
        (tmp_path / name).write_text("kept?")
    (tmp_path / "shards").mkdir()
    remove_others(tmp_path, ["schedule.yaml"])
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"schedule.yaml", "shards", *stay}
    remove_others(tmp_path, [])
    assert left - {path.name for path in tmp_path.iterdir()} == {"schedule.yaml"}


def test_only_schedules_of_another_search_are_removed(tmp_path: Path) -> None:
    names = ("candidate-1.yaml", "candidate-22.yaml", "baseline-0.yaml", "baseline-9.yaml",
             "candidate-1.yaml.bak", "candidate-mine.yaml", "notes.yaml")  # fmt: skip
    folder = tmp_path / "schedules"
    folder.mkdir()
    for name in names:
        (folder / name).write_text("kept?")
    (tmp_path / "candidate-1.yaml").write_text("not in the folder")
    remove_others(tmp_path, ["schedule.yaml", "schedules/candidate-22.yaml"])
    left = {"candidate-22.yaml", "candidate-1.yaml.bak", "candidate-mine.yaml", "notes.yaml"}
    assert {path.name for path in folder.iterdir()} == left
    assert (tmp_path / "candidate-1.yaml").is_file()


def test_a_fresh_run_folder_has_nothing_to_remove(tmp_path: Path) -> None:
    remove_others(tmp_path, [])
    assert not list(tmp_path.iterdir())
