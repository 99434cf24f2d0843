"""The schedule that a search starts from: a shipped one with the user's choices put in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from hardware_models.errors import InputError
from hardware_models.hardware import Hardware
from twin.deployment import Deployment, Role, RoleDeployment
from twin.model_spec import ModelSpec
from twin.models import load_model
from twin.schedule import Schedule
from twin.schedule_io import load_schedule
from twin.search.changes import with_deployment
from twin.search.config import PARALLEL_SIZES, DeploymentChoice, Kind, SearchConfig
from twin.search.space import Space
from twin.search.transport import with_transport
from twin.validate import validate_schedule


def base_schedule(config: SearchConfig, kind: Kind) -> Schedule:
    """The base of ``kind`` with model, die, workload and parallel sizes as configured.

    Raises:
        InputError: no base for this model, or a broken schedule file.
    """
    base = load_schedule(config.base_name(kind))
    choice = config.workload
    given = {
        name: value
        for name in ("global_batch", "kv_tokens", "next_n", "acceptance", "expert_load")
        if (value := getattr(choice, name)) is not None
    }
    if config.deployment.transport is not None:
        base = with_transport(base, config.deployment.transport)
    deployment = _with_sizes(base.deployment, config.deployment)
    if config.hardware.die is not None:
        deployment = replace(deployment, hardware=config.hardware.die)
    scopes = base.super_kernel
    if deployment.graph_mode != base.deployment.graph_mode:
        if deployment.graph_mode == "eager":
            raise InputError(
                "deployment.graph_mode",
                "eager",
                "a graph mode, or base=FILE of a schedule for eager (one stream, no prefetch)",
            )
        # Only ge_graph fuses launches, so scopes go with it.
        scopes = scopes if deployment.graph_mode == "ge_graph" else ()
    return replace(
        with_deployment(base, deployment),
        super_kernel=scopes,
        model=config.model,
        workload=replace(base.workload, **given),
    )


def searched_space(config: SearchConfig) -> Space:
    """The space that the configuration asks for, its knobs checked.

    Raises:
        InputError: a key of the configuration, or what no knob changes, is wrong.
    """
    config.check()
    base = base_schedule(config, config.scenario)
    model = load_model(config.model)
    hardware = config.hardware.load(base.deployment.hardware)
    check_fixed(base, model, hardware)
    space = Space(base, model, hardware, config.search.knobs, config.deployment.dies or ())
    space.check()
    return space


def check_fixed(base: Schedule, model: ModelSpec, hardware: Hardware) -> None:
    """Refuse what no knob changes, so that it is the input that is wrong.

    Raises:
        InputError: a field of the workload is impossible, or the die lacks a parameter.
    """
    try:
        validate_schedule(base, model, hardware)
    except InputError as error:
        if error.field.startswith("workload.") or error.field == "parameter":
            raise


def _with_sizes(deployment: Deployment, choice: DeploymentChoice) -> Deployment:
    holder = deployment.attention_role
    sizes: Mapping[str, int] = {
        name: value for name in PARALLEL_SIZES if (value := getattr(choice, name)) is not None
    }
    roles: dict[Role, RoleDeployment] = dict(deployment.roles)
    roles[holder] = replace(roles[holder], **sizes)
    return replace(
        deployment,
        roles=roles,
        quantisation=choice.quantisation or deployment.quantisation,
        graph_mode=choice.graph_mode or deployment.graph_mode,
    )
