"""``manifests/``, for kustomize: what the chart renders, in files.

``python -m tools.manifests`` renders the chart with each file of ``manifests/values`` and writes the base, the objects
of components and overlays, and the patches of components: the difference that their values make. It needs Helm. What
only kustomize has is written by hand: the kustomizations of base and overlays, the overlays kwok and upgrade-from-hami.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import click

from testing import binaries
from testing.helm_chart import CHART, ROOT, Helm
from tools.patches import Document, parse, render_patch

__all__ = ["FOLDER", "generated_files"]

FOLDER = ROOT / "manifests"
VALUES = FOLDER / "values"
COMPONENTS = FOLDER / "components"
HEAD = "# Written by `python -m tools.manifests` from charts/hami: change its templates, or {values}.\n"
POLICIES = (
    "allocations",
    "registrations",
    "ca-bundle",
    "preemption",
    "preemptible",
    "make-room",
    "budgets",
    "placement",
)
ROLES = (
    "allocation-writer-role",
    "vendor-device-plugin-role",
    "webhook-skipper-role",
    "priority-user-role",
    "preemption-refuser-role",
    "move-requester-role",
    "budget-writer-role",
)
BASE = {
    "rbac.yaml": (
        "scheduler/rbac",
        "scheduler/extender-rbac",
        "scheduler/preemption-rbac",
        "scheduler/rejected-rbac",
    ),
    "service.yaml": ("scheduler/service",),
    "deployment.yaml": ("scheduler/deployment",),
    "webhook.yaml": ("scheduler/webhook",),
    "policies.yaml": tuple(f"policies/{name}" for name in POLICIES),
    "policy-roles.yaml": tuple(f"policies/{name}" for name in ROLES),
    "availability.yaml": ("scheduler/pdb",),
    "network-policy.yaml": (
        "scheduler/networkpolicy",
        "device-plugin/networkpolicy",
        "monitor/networkpolicy",
    ),
    "device-plugin-rbac.yaml": ("device-plugin/rbac",),
    "device-plugin.yaml": ("device-plugin/daemonset",),
    "monitor-rbac.yaml": ("monitor/rbac",),
    "monitor.yaml": ("monitor/daemonset",),
}
"""Files of the base, by the templates whose objects they have."""
CONFIGS = {
    "scheduler-config.yaml": ("scheduler/configmap", "config.yaml"),
    "node-config.json": ("device-plugin/configmap", "config.json"),
}
"""Files of the base whose text is in a ConfigMap: the template, and the key."""
WEBHOOK = "MutatingWebhookConfiguration/hami-webhook"
_OF_HELM = re.compile(
    r"(?m)^ +(helm\.sh/(chart|resource-policy)|app\.kubernetes\.io/(instance|version|managed-by)"
    r"|checksum/[a-z-]+): .*\n"
)
"""Labels of a release, what only Helm reads, and the checksums that roll pods out: kustomize gives a ConfigMap a new
name instead."""
_EMPTY = re.compile(r"(?m)^( *)annotations:\n(?!\1 )")


@dataclass(frozen=True, kw_only=True)
class Component:
    """A component: what its values add to those of other files."""

    files: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """New objects: files, by templates."""
    beside: tuple[str, ...] = ()
    """More values without which it has nothing to patch, or to add to."""
    patches: Mapping[str, str] = field(default_factory=dict)
    """Files of patches, by the object: ``tools.policies`` writes them, too."""
    profile: bool = False
    """Whether kube-scheduler has another configuration with it."""


BY_NAME = {
    "selinux": Component(),
    "prometheus": Component(
        files={
            "service-monitor.yaml": ("prometheus/scheduler-monitor",),
            "pod-monitor.yaml": ("prometheus/monitor", "prometheus/device-plugin-monitor"),
            "kube-scheduler.yaml": (
                "prometheus/kube-scheduler-service",
                "prometheus/kube-scheduler-monitor",
                "prometheus/kube-scheduler-networkpolicy",
            ),
            "network-policy.yaml": ("prometheus/device-plugin-networkpolicy",),
            "rules.yaml": ("prometheus/rules",),
        }
    ),
    "no-clean-rejected": Component(),
    # beside the dashboard, which then shows users the part of their namespace
    "usage": Component(files={"rbac.yaml": ("scheduler/budgets-rbac",)}, beside=("dashboard",)),
    "region-mount": Component(),
    "memory-wall": Component(),
    "hami-limiter": Component(),
    "dra": Component(
        files={
            "device-class.yaml": ("dra/device-class-gpu", "dra/device-class-mig"),
            "rbac.yaml": (
                "dra/device-plugin-rbac",
                "dra/kubelet-rbac",
                "dra/taint-tolerator",
                "dra/scheduler-rbac",
            ),
            "policies.yaml": (
                "dra/slices",
                "dra/device-taints",
                "dra/claim-priority",
                "dra/claim-pods",
            ),
        },
        beside=("dashboard",),
    ),
    "dra-allocate": Component(
        files={
            "policies.yaml": ("dra/own-claims", "dra/claim-amounts"),
            "rbac.yaml": ("dra/allocate-rbac",),
        },
        beside=("dra",),
        patches={WEBHOOK: "webhook.yaml"},
        profile=True,
    ),
    "gpu-operator-client": Component(),
    "remediation": Component(
        files={
            "rbac.yaml": ("scheduler/remediation-rbac",),
            "policies.yaml": ("policies/remediation",),
        }
    ),
    "defragment": Component(
        files={"rbac.yaml": ("scheduler/moves-rbac",), "policies.yaml": ("policies/moves",)}
    ),
    "strict": Component(),
    "mig": Component(),
    "no-preemption": Component(),
    "admission-policies": Component(
        files={
            "policies.yaml": (
                "admission/nvidia-defaults",
                "admission/nvidia-requests",
                "admission/nvidia-wishes",
            )
        },
        patches={WEBHOOK: "webhook.yaml"},
    ),
    "dashboard": Component(
        files={
            "rbac.yaml": ("dashboard/rbac",),
            "deployment.yaml": ("dashboard/deployment",),
            "service.yaml": ("dashboard/service",),
            "network-policy.yaml": ("dashboard/networkpolicy",),
        }
    ),
    "inspect-api": Component(
        files={
            "api-service.yaml": ("dashboard/api-service",),
            "rbac.yaml": ("dashboard/inspect-api-rbac",),
        },
        beside=("dashboard",),
    ),
}
SELF_SIGNED = {
    "rbac.yaml": ("scheduler/self-signed-rbac",),
    "secret.yaml": ("scheduler/self-signed-secret",),
}
CERTIFICATES = tuple(
    f"certificates/{name}"
    for name in ("self-signed-issuer", "ca", "ca-issuer", "scheduler", "dashboard")
)


class Rendering:
    """What the chart renders with some files of values: the text of each template."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = texts

    def text(self, templates: Iterable[str]) -> str:
        """Returns the objects of *templates*."""
        return "---\n".join(self._texts[name] for name in templates)

    def objects(self) -> Iterator[tuple[str, Document]]:
        """Yields all objects by kind and name."""
        for text in self._texts.values():
            for document in parse(text):
                content = document.content
                metadata = content["metadata"]
                assert isinstance(metadata, dict)
                yield f"{content['kind']}/{metadata['name']}", document

    def data(self, template: str, key: str) -> str:
        """Returns a text in a ConfigMap."""
        (document,) = parse(self._texts[template])
        data = document.content["data"]
        assert isinstance(data, dict)
        text: str = data[key]
        return text


class _Chart:
    """Renders the chart, each set of files once."""

    def __init__(self, helm: Helm) -> None:
        self._helm = helm
        self._renderings: dict[tuple[str, ...], Rendering] = {}

    def render(self, *names: str) -> Rendering:
        """Returns what the chart renders with the base's values and those of *names*."""
        if names not in self._renderings:
            files = [VALUES / f"{name}.yaml" for name in ("base", *names)]
            text = self._helm.run(
                "template",
                "hami",
                CHART,
                "--namespace=kube-system",
                f"--kube-version={binaries.DEFAULT.kube_version}",
                *(f"--values={file}" for file in files),
            )
            self._renderings[names] = Rendering(_by_template(text))
        return self._renderings[names]


def _by_template(text: str) -> dict[str, str]:
    """Returns what Helm has rendered, by the template without its ending."""
    found: dict[str, str] = {}
    for part in re.split(r"(?m)^---\n", text):
        source = re.match(r"# Source: hami/templates/(\S+)\.yaml\n", part)
        if source is None:
            continue
        document = _EMPTY.sub("", _OF_HELM.sub("", part[source.end() :]))
        # only with Helm, a binding of HAMi's chart has the other name
        document = document.replace("hami-device-plugin-rights", "hami-device-plugin")
        document = document.strip("\n") + "\n"
        found[source[1]] = f"{found[source[1]]}---\n{document}" if source[1] in found else document
    return found


def generated_files(helm: Helm) -> dict[Path, str]:
    """Returns the content of each file that the chart makes."""
    chart = _Chart(helm)
    base = chart.render()
    files = {FOLDER / "base" / name: base.text(templates) for name, templates in BASE.items()}
    for name, (template, key) in CONFIGS.items():
        files[FOLDER / "base" / name] = base.data(template, key)
    for name, component in BY_NAME.items():
        files.update(_component(chart, name, component))
    files.update(_overlays(chart))
    return files


def _component(chart: _Chart, name: str, component: Component) -> dict[Path, str]:
    folder = COMPONENTS / name
    before, after = chart.render(*component.beside), chart.render(*component.beside, name)
    files = {folder / file: after.text(templates) for file, templates in component.files.items()}
    values = VALUES / f"{name}.yaml"
    lines = [
        *_comment(values),
        HEAD.format(values=values.relative_to(ROOT)),
        "apiVersion: kustomize.config.k8s.io/v1alpha1\nkind: Component\n",
    ]
    if component.files:
        lines += ["resources:\n", *(f"- {file}\n" for file in component.files)]
    if component.profile:
        template, key = CONFIGS["scheduler-config.yaml"]
        files[folder / "scheduler-config.yaml"] = after.data(template, key)
        lines.append(_PROFILE)
    patches = list(_patches(before, after, component.patches))
    if patches:
        lines += ["patches:\n", *patches]
    for key, file in component.patches.items():
        files[folder / file] = _patch(before, after, key, name)
    files[folder / "kustomization.yaml"] = "".join(lines)
    return files


_PROFILE = """\
configMapGenerator:
- name: hami-kube-scheduler
  namespace: kube-system
  behavior: replace
  files:
  - config.yaml=scheduler-config.yaml
"""


def _comment(file: Path) -> Iterator[str]:
    """Yields the lines of comment at the beginning of *file*."""
    for line in file.read_text().splitlines(keepends=True):
        if not line.startswith("#"):
            return
        yield line


def _patches(before: Rendering, after: Rendering, files: Mapping[str, str]) -> Iterator[str]:
    """Yields a patch of kustomize for each object in both that differs. *files*: those that have one, by the object."""
    old = dict(before.objects())
    for key, document in after.objects():
        if key not in old or key.startswith("ConfigMap/"):
            continue
        kind, _, name = key.partition("/")
        patch = render_patch(old[key], document)
        if key in files:
            yield f"- target: {{kind: {kind}, name: {name}}}\n  path: {files[key]}\n"
        elif patch:
            text = re.sub(r"(?m)^(?=.)", "    ", patch)
            yield f"- target: {{kind: {kind}, name: {name}}}\n  patch: |-\n{text}"


def _overlays(chart: _Chart) -> dict[Path, str]:
    """Returns the files of overlays that the chart makes."""
    base, signed = chart.render(), chart.render("self-signed")
    mock, manager = chart.render("self-signed", "kind"), chart.render("cert-manager")
    overlays = FOLDER / "overlays"
    files = {
        COMPONENTS / "self-signed" / name: signed.text(templates)
        for name, templates in SELF_SIGNED.items()
    }
    files[overlays / "self-signed" / "deployment.yaml"] = _patch(
        base, signed, "Deployment/hami-scheduler", "self-signed"
    )
    files[overlays / "kind" / "device-plugin.yaml"] = _patch(
        signed, mock, "DaemonSet/hami-device-plugin", "kind"
    )
    files[overlays / "cert-manager" / "certificates.yaml"] = manager.text(CERTIFICATES)
    # beside the overlays: their `namespace` would move the Role
    files[FOLDER / "usage" / "rbac.yaml"] = chart.render("dashboard", "usage").text(
        ["scheduler/usage-rbac", "dashboard/usage-rbac"]
    )
    return files


def _patch(before: Rendering, after: Rendering, key: str, values: str) -> str:
    head = HEAD.format(values=f"manifests/values/{values}.yaml")
    return head + render_patch(dict(before.objects())[key], dict(after.objects())[key])


@click.command(help="Write the files of manifests/ that the chart makes, and that are outdated.")
def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for path, content in generated_files(Helm(Path(folder))).items():
            if not path.exists() or path.read_text() != content:
                path.write_text(content)
                click.echo(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
