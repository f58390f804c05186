"""The installation of HAMi in a cluster, as far as an upgrade from HAMi's own chart changes it, and what disturbs it.

Such an upgrade has two steps. After the first, the scheduler counts what HAMi's scheduler writes on pods, HAMi's device
plugins keep their rights, and the policies only warn; the second ends that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from hami.codec.device_requests import parse_class_resource
from hami.codec.documents import decode
from hami.kube.pages import ObjectMeta
from hami.runtime.settings import ALLOCATE

SCHEDULERS = "app.kubernetes.io/component=hami-scheduler"  # label of Deployments, HAMi's and ours
DEVICE_PLUGINS = "app.kubernetes.io/component=hami-device-plugin"  # of DaemonSets
POLICY_PREFIX = "hami-"
_FLAG = "--foreign-reservations"
_DRA_FLAG = "--dra="
_TOKEN_VOLUME = "extender-token"
_CONFIG_VOLUME = "device-config"
# containers that only HAMi's chart has
_HAMIS = frozenset({"vgpu-scheduler-extender", "vgpu-monitor"})


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerDeployment:
    """A Deployment of schedulers. *name*: ``namespace/name``. *is_hamis*: of HAMi's chart, not of this project.

    *counts_others*: it counts what other schedulers write on pods that are not bound. *allocates*: it allocates claims.
    *account*: of kube-scheduler. *extender*: the account of the extender, empty where it is the same.
    """

    name: str
    is_hamis: bool = False
    counts_others: bool = False
    allocates: bool = False
    account: str = ""
    extender: str = ""

    @property
    def namespace(self) -> str:
        return self.name.partition("/")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExcessBinding:
    """A binding that gives kube-scheduler's account rights that only the extender needs. *kind*: as in commands.

    *name*: ``namespace/name``, or the name of a ClusterRoleBinding. *account*: ``namespace/name``. *has_extender*: it
    names the account of the extender, too.
    """

    kind: str
    name: str
    role: str  # as ``clusterrole/name``
    account: str
    has_extender: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """The state of an upgrade. *plugins*: nodes that have or get a device plugin. *outdated_plugins*: those of them
    whose plugin has not been replaced. *warning_policies*: those that do not refuse. *device_classes*: the extended
    resources that DeviceClasses stand for, by their names. *excess_bindings*: of the time with one account."""

    schedulers: tuple[SchedulerDeployment, ...] = ()
    plugins: int = 0
    outdated_plugins: int = 0
    warning_policies: tuple[str, ...] = ()
    device_classes: Mapping[str, str] = field(default_factory=dict)
    excess_bindings: tuple[ExcessBinding, ...] = ()


class _Container(msgspec.Struct):
    name: str = ""
    command: list[str] | None = None
    args: list[str] | None = None


class _Secret(msgspec.Struct, rename="camel"):
    secret_name: str = ""


class _ConfigMap(msgspec.Struct):
    name: str = ""


class _Volume(msgspec.Struct, rename="camel"):
    name: str = ""
    secret: _Secret | None = None
    config_map: _ConfigMap | None = None


class _PodSpec(msgspec.Struct, rename="camel"):
    containers: list[_Container] | None = None
    volumes: list[_Volume] | None = None
    service_account_name: str = ""


class _Template(msgspec.Struct):
    spec: _PodSpec = msgspec.field(default_factory=_PodSpec)


class _WorkloadSpec(msgspec.Struct):
    template: _Template = msgspec.field(default_factory=_Template)
    replicas: int | None = None


class _WorkloadMeta(ObjectMeta, rename="camel", frozen=True):
    generation: int = 0


class _WorkloadStatus(msgspec.Struct, rename="camel"):
    observed_generation: int = 0
    desired_number_scheduled: int = 0
    updated_number_scheduled: int = 0


class _Workload(msgspec.Struct):
    metadata: _WorkloadMeta = _WorkloadMeta()
    spec: _WorkloadSpec = msgspec.field(default_factory=_WorkloadSpec)
    status: _WorkloadStatus = msgspec.field(default_factory=_WorkloadStatus)

    @property
    def containers(self) -> Sequence[_Container]:
        return self.spec.template.spec.containers or ()

    @property
    def is_hamis(self) -> bool:
        return any(container.name in _HAMIS for container in self.containers)

    @property
    def extender(self) -> str:
        """The account whose token is in a Secret of its own: both have one name, but for ``-token``."""
        for volume in self.spec.template.spec.volumes or ():
            if volume.name == _TOKEN_VOLUME and volume.secret is not None:
                return "".join(volume.secret.secret_name.rsplit("-token", 1))
        return ""


class _BindingSpec(msgspec.Struct, rename="camel"):
    policy_name: str = ""
    validation_actions: list[str] | None = None


class _PolicyBinding(msgspec.Struct):
    spec: _BindingSpec = msgspec.field(default_factory=_BindingSpec)


class _Reference(msgspec.Struct):
    kind: str = ""
    name: str = ""
    namespace: str = ""


class _RoleBinding(msgspec.Struct, rename="camel"):
    metadata: ObjectMeta = ObjectMeta()
    role_ref: _Reference = msgspec.field(default_factory=_Reference)
    subjects: list[_Reference] | None = None


_ROLE_BINDING = msgspec.json.Decoder(_RoleBinding)
_WORKLOAD = msgspec.json.Decoder(_Workload)
_POLICY_BINDING = msgspec.json.Decoder(_PolicyBinding)


def parse_scheduler(raw: msgspec.Raw) -> SchedulerDeployment | None:
    """Returns the schedulers of a Deployment; ``None`` if it has been scaled down to none. Raises: MalformedInput."""
    workload = decode("deployment", _WORKLOAD, raw)
    if workload.spec.replicas == 0:
        return None
    words: list[str] = []
    for container in workload.containers:
        words += container.command or ()
        words += container.args or ()
    modes = [word.removeprefix(_DRA_FLAG) for word in words if word.startswith(_DRA_FLAG)]
    return SchedulerDeployment(
        name=workload.metadata.path,
        is_hamis=workload.is_hamis,
        counts_others=any(map(_is_flag, words)),
        allocates=modes[-1:] == [ALLOCATE],
        extender=workload.extender,
        account=workload.spec.template.spec.service_account_name,
    )


def parse_config_map_name(raw: msgspec.Raw) -> str:
    """Returns the name of the ConfigMap with the device configuration that a Deployment of schedulers mounts, or "".

    Raises: MalformedInput.
    """
    workload = decode("deployment", _WORKLOAD, raw)
    for volume in workload.spec.template.spec.volumes or ():
        if volume.name == _CONFIG_VOLUME and volume.config_map is not None:
            return volume.config_map.name
    return ""


def parse_plugins(raw: msgspec.Raw) -> tuple[int, int]:
    """Returns the nodes of a DaemonSet of device plugins, and those of them that lack ours in its present form.

    Raises: MalformedInput.
    """
    workload = decode("daemonset", _WORKLOAD, raw)
    status, nodes = workload.status, workload.status.desired_number_scheduled
    is_seen = status.observed_generation >= workload.metadata.generation
    updated = status.updated_number_scheduled if is_seen and not workload.is_hamis else 0
    return nodes, max(0, nodes - updated)


def parse_warning_policy(raw: msgspec.Raw) -> str | None:
    """Returns the policy of HAMi to which a binding belongs if it does not refuse; else ``None``.

    Raises: MalformedInput.
    """
    spec = decode("policy binding", _POLICY_BINDING, raw).spec
    if not spec.policy_name.startswith(POLICY_PREFIX):
        return None
    if "Deny" in (spec.validation_actions or ()):
        return None
    return spec.policy_name


def parse_excess_binding(
    raw: msgspec.Raw, schedulers: Sequence[SchedulerDeployment]
) -> ExcessBinding | None:
    """Returns a binding through which one of *schedulers*, whose extender has an account of its own, gives its
    kube-scheduler the role of the extender or of the former single account; else ``None``. Both roles have the names of
    the accounts. Raises: MalformedInput.
    """
    binding = decode("role binding", _ROLE_BINDING, raw)
    role, meta = binding.role_ref, binding.metadata
    accounts = _service_accounts(binding)
    in_use: set[tuple[str, str]] = set()
    for scheduler in schedulers:
        if not scheduler.extender:
            in_use.add((scheduler.namespace, scheduler.account))
    for scheduler in schedulers:
        account = scheduler.namespace, scheduler.account
        if not scheduler.extender or account not in accounts - in_use:
            continue
        if role.name in (scheduler.account, scheduler.extender):
            return ExcessBinding(
                kind="rolebinding" if meta.namespace else "clusterrolebinding",
                name=meta.path,
                role=f"{role.kind.lower()}/{role.name}",
                account="/".join(account),
                has_extender=(scheduler.namespace, scheduler.extender) in accounts,
            )
    return None


def _service_accounts(binding: _RoleBinding) -> set[tuple[str, str]]:
    """Returns namespace and name of each account to which *binding* gives its role."""
    accounts: set[tuple[str, str]] = set()
    for subject in binding.subjects or ():
        if subject.kind == "ServiceAccount":
            accounts.add((subject.namespace, subject.name))
    return accounts


def parse_device_class(raw: msgspec.Raw) -> tuple[str, str] | None:
    """Returns the name of a DeviceClass and the extended resource that it stands for; ``None`` if it does for none.

    Raises: MalformedInput.
    """
    _, name, resource = parse_class_resource(raw)
    return (name, resource) if resource else None


def _is_flag(word: str) -> bool:
    name, _, value = word.partition("=")
    return name.replace("_", "-") == _FLAG and value.lower() not in ("false", "f", "0")
