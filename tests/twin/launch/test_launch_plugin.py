"""The AFD plugin's commands: settings both ways, kept flags, wrong commands refused."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hardware_models.errors import InputError
from twin.deployment import Afd
from twin.launch.beside import Beside
from twin.launch.differences import differences
from twin.launch.plugin import import_plugin, plugin_schedule, plugin_settings
from twin.launch.plugin_export import nearest_plugin, plugin_commands
from twin.launch.plugin_flags import Command, command_text, read_commands
from twin.launch.plugin_keys import PluginSettings
from twin.launch.spelling import spelled
from twin.models import load_model
from twin.schedule_io import load_schedule
from twin.search.changes import with_ratio

MODEL = load_model("longcat-flash-560b")
BESIDE = Beside(model="longcat-flash-560b", hardware="a3-752t", quantisation="w8a8", kv_tokens=4608)


def config(role: str = "attention", **changes: object) -> str:
    """An additional configuration; a change of None leaves its key out."""
    afd: dict[str, Any] = {
        "role": role,
        "connector": "camp2pconnector",
        "host": "10.0.0.1",
        "port": 29500,
        "num_attention_ranks": 96,
        "num_ffn_ranks": 32,
        "compute_gate_on_attention": False,
        "connector_extra_config": {"attn_core_num": 8, "ffn_core_num": 8, "quant_mode": 0},
    }
    afd |= changes
    return json.dumps({"afd": {k: v for k, v in afd.items() if v is not None}})


FLAGS = (
    "--data-parallel-size 96 --max-num-seqs 4 --max-num-batched-tokens 16 --enable-dbo "
    "--ubatch-size 2 --dbo-decode-token-threshold 4 "
    """--speculative-config '{"num_speculative_tokens": 2}' """
    """--compilation-config '{"cudagraph_mode": "FULL_DECODE_ONLY", """
    """"cudagraph_capture_sizes": [12, 24]}'"""
)


def settings(text: str, flags: str | None = None) -> PluginSettings:
    return plugin_settings(read_commands(text, "launch", flags), "launch")


def test_a_configuration_and_its_flags_are_read() -> None:
    found = settings(config(), FLAGS)
    assert found == PluginSettings(
        attention_ranks=96,
        ffn_ranks=32,
        max_num_seqs=4,
        micro_batches=2,
        next_n=2,
        attention_cores=8,
        ffn_cores=8,
    )
    schedule = plugin_schedule(found, BESIDE)
    deployment = schedule.deployment
    assert {n: (r.dies, r.ep) for n, r in deployment.roles.items()} == {
        "attention": (96, 1),
        "ffn": (32, 32),
    }
    assert deployment.afd == Afd(transport="camp2p", micro_batches=2)
    assert deployment.graph_mode == "npugraph_ex"
    assert schedule.workload.global_batch == 384
    assert [stage.streams["link"].aiv for stage in schedule.stages] == [8, 8]


def test_commands_of_both_roles_agree_and_add_up() -> None:
    words = "".join(
        f"# the {role} role\nHCCL_BUFFSIZE=512 vllm serve /model \\\n {flags} \\\n"
        f"  --additional-config '{config(role, connector_extra_config=extra)}'\n\n"
        for role, flags, extra in (
            ("attention", "--max-num-seqs=2 --enforce_eager", {"attn_core_num": 4}),
            ("ffn", "--enforce-eager", {"ffn_core_num": 16}),
        )
    )
    found = settings(words)
    assert (found.attention_cores, found.ffn_cores) == (4, 16)
    assert (found.is_graph, found.max_num_seqs, found.groups) == (False, 2, 96)


def test_thresholds_decide_whether_micro_batches_run() -> None:
    below = FLAGS.replace("threshold 4", "threshold 13")
    assert settings(config(), below).micro_batches == 1
    assert settings(config(), below.replace("13", "12")).micro_batches == 2


@st.composite
def any_settings(draw: st.DrawFn) -> PluginSettings:
    ffn = draw(st.sampled_from([16, 32, 64]))
    tp = draw(st.sampled_from([1, 1, 2, 4]))
    sequences = draw(st.integers(1, 8))
    cores = st.sampled_from([None, 4, 8, 16])
    return PluginSettings(
        attention_ranks=ffn * draw(st.integers(1, 4)),
        ffn_ranks=ffn,
        max_num_seqs=sequences,
        tensor_parallel=tp,
        is_graph=draw(st.booleans()),
        micro_batches=draw(st.integers(1, min(2, sequences))),
        next_n=draw(st.integers(0, 2)),
        attention_cores=draw(cores),
        ffn_cores=draw(cores),
    )


@given(any_settings())
def test_commands_say_their_settings(given_settings: PluginSettings) -> None:
    commands = plugin_commands(given_settings, "/model", None, "")
    text = "\n".join(command_text(command) for command in commands)
    assert read_commands(text, "x") == commands
    assert settings(text) == given_settings
    schedule = plugin_schedule(given_settings, BESIDE)
    # A schedule that such a launch gives is said whole.
    again, nearest = nearest_plugin(schedule, MODEL)
    assert again == given_settings
    assert nearest == schedule
    assert not differences(schedule, nearest)
    assert spelled(schedule) == schedule


@given(any_settings(), any_settings(), st.lists(st.booleans(), min_size=4, max_size=4))
def test_kept_commands_keep_what_is_not_decided(
    before: PluginSettings, after: PluginSettings, choices: list[bool]
) -> None:
    commands = plugin_commands(before, "/model", None, "")
    kept = []
    for command in commands[: 1 if choices[0] else 2]:
        flags = dict(command.flags)
        if choices[1]:
            flags.pop("--data-parallel-size")
        if choices[2] and before.tensor_parallel == 1:
            flags.pop("--tensor-parallel-size")
        extra: dict[str, Any] = {"--seed": 7, "--trust-remote-code": True} if choices[3] else {}
        kept.append(Command(("A=b c",), command.model, {**extra, **flags}))
    # The same settings: nothing moves, not even the order.
    same = plugin_commands(plugin_settings(kept, "x"), "other", kept, "x")
    assert [list(c.flags.items()) for c in same] == [list(c.flags.items()) for c in kept]
    # Other settings: said, and the rest stays.
    changed = plugin_commands(after, "other", kept, "x")
    assert plugin_settings(changed, "x") == after
    for old, new in zip(kept, changed, strict=True):
        assert (new.environment, new.model) == (old.environment, old.model)
        for flag in ("--seed", "--trust-remote-code", "--port"):
            assert new.flags.get(flag) == old.flags.get(flag)


def test_what_the_plugin_cannot_say_is_listed() -> None:
    schedule = load_schedule("recipe_afd")
    deployment = replace(schedule.deployment, afd=Afd(micro_batches=3))
    _, nearest = nearest_plugin(replace(schedule, deployment=deployment), MODEL)
    found = {
        d.part: d.nearest for d in differences(replace(schedule, deployment=deployment), nearest)
    }
    assert found == {
        "deployment.afd.transport": "camp2p",
        "deployment.afd.micro_batches": "2",
        "deployment.roles.o_proj_tp": "1",
        "deployment.roles.dense_tp": "1",
        "deployment.roles.lm_head_tp": "1",
        "prefetch": "none",
        "super_kernel": "none",
        "deployment.graph_mode": "npugraph_ex",
    }
    _, three = nearest_plugin(with_ratio(schedule, 3), MODEL)
    assert {n: r.dies for n, r in three.deployment.roles.items()} == {"attention": 96, "ffn": 32}


def test_a_colocated_schedule_is_refused_with_the_other_target() -> None:
    with pytest.raises(InputError, match="target=recipe"):
        nearest_plugin(load_schedule("recipe_colocated"), MODEL)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"role": "both"}, "afd.role"),
        ({"role": "ffn"}, "afd.role"),
        ({"connector": "m2n"}, "afd.connector"),
        ({"num_ffn_ranks": 0}, "afd.num_ffn_ranks"),
        ({"num_ffn_ranks": "32"}, "afd.num_ffn_ranks"),
        ({"num_attention_ranks": 100}, "afd.num_attention_ranks"),
        ({"num_attention_ranks": 16}, "afd.num_attention_ranks"),
        ({"num_attention_ranks": None}, "afd.num_attention_ranks"),
        ({"compute_gate_on_attention": True}, "afd.compute_gate_on_attention"),
        ({"port": 70000}, "afd.port"),
        ({"ranks": 1}, "afd.ranks"),
        (
            {"connector_extra_config": {"attn_core_num": 0}},
            "afd.connector_extra_config.attn_core_num",
        ),
        ({"connector_extra_config": {"cores": 8}}, "afd.connector_extra_config.cores"),
    ],
)
def test_wrong_configurations_name_the_key(changes: dict[str, object], field: str) -> None:
    with pytest.raises(InputError) as caught:
        settings(config(**changes), FLAGS)  # type: ignore[arg-type]
    assert caught.value.field == field
    assert caught.value.source == "launch"


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ("--data-parallel-size 96", "--data-parallel-size 95", "--data-parallel-size"),
        ("--data-parallel-size 96", "--data-parallel-size many", "--data-parallel-size"),
        ("--data-parallel-size 96", "--tensor-parallel-size 5", "--tensor-parallel-size"),
        ("--max-num-seqs 4", "", "--max-num-seqs"),
        ("--max-num-seqs 4", "--max-num-seqs", "--max-num-seqs"),
        ("--max-num-seqs 4", "--max-num-seqs 0", "--max-num-seqs"),
        ("--max-num-seqs 4", "--max-num-seqs 4 --max-num-seqs 4", "--max-num-seqs"),
        ("tokens 16", "tokens 11", "--max-num-batched-tokens"),
        ("--ubatch-size 2", "--ubatch-size 3", "--ubatch-size"),
        ("--enable-dbo", "", "--ubatch-size"),
        ("--enable-dbo", "--enable-dbo=yes", "--enable-dbo"),
        ("--enable-dbo", "--enable-dob", "flag"),
        ("--enable-dbo", "--enforce-eager", "--compilation-config"),
        ('_tokens": 2', '_tokens": 3', "num_speculative_tokens"),
        ("[12, 24]", "[4, 8]", "cudagraph_capture_sizes"),
        ("[12, 24]", "[0, 24]", "cudagraph_capture_sizes"),
        ("FULL_DECODE_ONLY", "FULL", "cudagraph_mode"),
        ("[12, 24]}", "[12, 24]", "--compilation-config"),
        ("'{\"num", '{"num', "command"),
        ("--enable-dbo", "--additional-config '{}'", "flags"),
    ],
)
def test_wrong_flags_are_named(old: str, new: str, field: str) -> None:
    assert old in FLAGS
    with pytest.raises(InputError) as caught:
        settings(config(), FLAGS.replace(old, new))
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("text", "field"),
    [("", "file"), ("{", "file"), ('{"afd": 1, "afd": 2}', "file"), ("{}", "afd"), ("ls", "flag")],
)
def test_files_without_commands_are_refused(text: str, field: str) -> None:
    with pytest.raises(InputError) as caught:
        settings(text)
    assert caught.value.field == field


def test_a_missing_configuration_is_named() -> None:
    with pytest.raises(InputError, match="--additional-config"):
        settings("vllm serve /model --max-num-seqs 4")


@pytest.mark.parametrize(
    ("flags", "changes", "field"),
    [
        ("", {"num_ffn_ranks": 16}, "afd.num_ffn_ranks"),
        ("", {"port": 1}, "afd.port"),
        ("", {"role": "attention"}, "afd.role"),
        ("", {"connector_extra_config": {"attn_core_num": 9}}, "connector_extra_config"),
        ("--data-parallel-size 96", {}, "--data-parallel-size"),
        ("--enforce-eager", {}, "--compilation-config"),
        ("--enable-dbo", {}, "--enable-dbo"),
    ],
)
def test_roles_that_contradict_each_other_are_refused(
    flags: str, changes: dict[str, object], field: str
) -> None:
    second = {"role": "ffn", **changes}
    text = (
        f"vllm serve m --max-num-seqs 4 --additional-config '{config()}'\n"
        f"vllm serve m {flags} --additional-config '{config(**second)}'\n"  # type: ignore[arg-type]
    )
    with pytest.raises(InputError) as caught:
        settings(text)
    assert field in caught.value.field


def test_rules_of_the_schedule_name_the_flag() -> None:
    # 40 FFN ranks do not divide 512 experts; a die has 48 vector cores.
    cores = {"attn_core_num": 8, "ffn_core_num": 60}
    for text, field in (
        (config(num_attention_ranks=40, num_ffn_ranks=40), "afd.num_ffn_ranks"),
        (config(connector_extra_config=cores), "afd.connector_extra_config.ffn_core_num"),
    ):
        with pytest.raises(InputError) as caught:
            import_plugin(text, "launch", BESIDE, "--max-num-seqs 4")
        assert (caught.value.source, caught.value.field) == ("launch", field)


def test_what_a_schedule_has_no_field_for_or_nobody_said_is_named() -> None:
    flags = (
        "--max-num-seqs 5 --compilation-config "
        """'{"cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": [4, 8]}' """
        "--enable-dbo --dbo-decode-token-threshold 32"
    )
    text = config(connector_extra_config={"quant_mode": 1})
    found = import_plugin(text, "launch", BESIDE, flags)
    notes = " ".join(found.not_modelled)
    for word in ("quant_mode", "5 tokens are padded to 8", "--enable-dbo"):
        assert word in notes
    assert found.assumed["acceptance"] == 0.0
    assert "cudagraph_mode" not in found.assumed
    bare = import_plugin(config(), "launch", BESIDE, "--max-num-seqs 4")
    assert bare.assumed["cudagraph_mode"] == "FULL_DECODE_ONLY"
    assert not bare.not_modelled
