"""``hami render-template``: what a node group's template needs."""

from __future__ import annotations

import os

import click

from hami.cli.device_plugin import PLUGIN_DEFAULTS
from hami.cli.flags import GroupedCommand, fields_given
from hami.errors import HamiError, MalformedInput
from hami.plugin.flags import NODE, SHARING
from hami.plugin.node_template import KARPENTER, TEMPLATE_FORMS, render_template, template_node
from hami.plugin.settings import read_plugin_settings
from hami.runtime.options import STRING, Flag, Groups, choice, whole_number

_SHARING = (
    "--resource-name",
    "--device-split-count",
    "--device-memory-scaling",
    "--device-cores-scaling",
)
NODE_GROUP = (
    Flag(
        "--model",
        STRING,
        "Model of the GPUs, as the driver names it: NVIDIA A100-SXM4-80GB. Required.",
    ),
    Flag("--count", whole_number(1), "GPUs of a node. Required."),
    Flag(
        "--memory",
        whole_number(1),
        "Memory of a GPU in MiB, as the driver shows it: 81920. Required.",
    ),
    Flag("--name", STRING, "Name of the node or NodeOverlay.  [default: template]"),
    Flag(
        "--output",
        choice("form", *TEMPLATE_FORMS),
        "node: a Node with labels, annotations and capacity. "
        "cluster-autoscaler: tags of a node group. karpenter: a NodeOverlay.  [default: node]",
    ),
    Flag("--instance-type", STRING, "The type of the nodes; required for karpenter."),
)
AS_PLUGIN: Groups = (
    (
        "As of the device plugin",
        tuple(flag for flag in (*NODE, *SHARING) if flag.name in ("--config-file", *_SHARING)),
    ),
)
TEMPLATE_FLAGS: Groups = (("Node group", NODE_GROUP), *AS_PLUGIN)


@click.command(
    name="render-template",
    cls=GroupedCommand,
    groups=TEMPLATE_FLAGS,
    defaults=(PLUGIN_DEFAULTS, PLUGIN_DEFAULTS.nvidia),
)
@click.pass_context
def render_template_command(ctx: click.Context, /, **values: object) -> None:
    """Print (YAML) what the template of a node group with NVIDIA GPUs needs, so that an autoscaler counts them before
    the first node exists.

    Labels and capacity are those of a node on which the device plugin runs with --publish-capacity=requests, which real
    nodes need, too. The label hami.io/node-template tells the devices to POST /simulate of the scheduler. Give the
    flags and the device configuration of the device plugin.
    """
    from hami.inspect.tables import render_document

    form, instance_type = (
        str(values["output"] or TEMPLATE_FORMS[0]),
        str(values["instance_type"] or ""),
    )
    required = {flag.name: values[flag.parameter] for flag in NODE_GROUP[:3]}
    if form == KARPENTER:
        required["--instance-type"] = instance_type
    if missing := [name for name, value in required.items() if not value]:
        raise HamiError(f"{', '.join(missing)}: missing")
    given = {
        **fields_given(ctx, AS_PLUGIN, dict(values)),
        "node": str(values["name"] or "template"),
    }
    settings = read_plugin_settings(given, os.environ)
    model, count, memory = required["--model"], required["--count"], required["--memory"]
    assert isinstance(count, int), "the flags are numbers"
    assert isinstance(memory, int), "the flags are numbers"
    try:
        node = template_node(settings, str(model), count, memory)
    except MalformedInput as error:
        raise HamiError(f"--model={model} --count={count}: {error.problem}") from error
    click.echo(render_document(render_template(node, form, instance_type), "yaml"))
