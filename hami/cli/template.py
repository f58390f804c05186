"""``hami render-template``: what a node group's template needs."""

from __future__ import annotations

import os

import click

from hami.cli.flags import GroupedCommand, command_line_values
from hami.errors import HamiError, MalformedInput
from hami.plugin.node_template import KARPENTER, TEMPLATE_FORMS, render_template, template_node
from hami.plugin.settings import FLAGS, read_plugin_settings
from hami.runtime.options import Flag, Sections, choice, section, whole_number

NODE_GROUP = (
    Flag("--model", "Model of the GPUs, as the driver names it: NVIDIA A100-SXM4-80GB. Required."),
    Flag("--count", "GPUs of a node. Required.", whole_number(1)),
    Flag(
        "--memory",
        "Memory of a GPU in MiB, as the driver shows it: 81920. Required.",
        whole_number(1),
    ),
    Flag("--name", "Name of the node or NodeOverlay.", default="template"),
    Flag(
        "--output",
        "node: a Node with labels, annotations and capacity. cluster-autoscaler: tags of a node "
        "group. karpenter: a NodeOverlay.",
        choice("form", *TEMPLATE_FORMS),
        default=TEMPLATE_FORMS[0],
    ),
    Flag("--instance-type", "The type of the nodes; required for karpenter."),
)
AS_PLUGIN: Sections = {
    "As of the device plugin": section(
        FLAGS,
        "--config-file --resource-name --device-split-count --device-memory-scaling --device-cores-scaling",
    ),
}
TEMPLATE_FLAGS: Sections = {"Node group": NODE_GROUP, **AS_PLUGIN}


@click.command(name="render-template", cls=GroupedCommand, sections=TEMPLATE_FLAGS)
@click.pass_context
def render_template_command(ctx: click.Context, /, **values: object) -> None:
    """Print what the template of a node group needs.

    With it (YAML), an autoscaler counts the NVIDIA GPUs of a node group before its first node exists. Labels and
    capacity are those of a node on which the device plugin runs with --publish-capacity=requests, which real nodes
    need, too. The label hami.io/node-template tells the devices to POST /simulate of the scheduler. Give the flags and
    the device configuration of the device plugin.
    """
    from hami.inspect.tables import render_document

    form = str(values["output"] or TEMPLATE_FORMS[0])
    instance_type = str(values["instance_type"] or "")
    required = {flag.name: values[flag.parameter] for flag in NODE_GROUP[:3]}
    if form == KARPENTER:
        required["--instance-type"] = instance_type
    missing = []
    for name, value in required.items():
        if not value:
            missing.append(name)
    if missing:
        raise HamiError(f"{', '.join(missing)}: missing")
    flag_values = command_line_values(ctx, AS_PLUGIN, values)
    flag_values["node"] = values["name"] or "template"
    settings = read_plugin_settings(flag_values, os.environ)
    model, count, memory = required["--model"], required["--count"], required["--memory"]
    assert isinstance(count, int), "the flags are numbers"
    assert isinstance(memory, int), "the flags are numbers"
    try:
        node = template_node(settings, str(model), count, memory)
    except MalformedInput as error:
        raise HamiError(f"--model={model} --count={count}: {error.problem}") from error
    click.echo(render_document(render_template(node, form, instance_type), "yaml"))
