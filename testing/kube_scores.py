"""How kube-scheduler scores nodes for a pod by default, as far as it depends on CPU and memory."""

from __future__ import annotations

from typing import Any

import numpy
from numpy.typing import NDArray

__all__ = ["best_nodes"]

Array = NDArray[Any]


def best_nodes(amounts: Array, requested: Array, asked: tuple[int, int], fits: Array) -> Array:
    """Returns the positions of the nodes with the highest score for a pod that requests *asked*, among those that it
    *fits*. kube-scheduler takes one of them at random.

    *amounts*, *requested*: CPU and memory (rows) of each node, and what its pods request of them.
    Source: k8s.io/kubernetes v1.37, pkg/scheduler/framework/plugins/noderesources, least_allocated.go and
    balanced_allocation.go: the balance counts by how much the pod changes it.
    """
    with_pod = requested + numpy.array(asked)[:, None]
    least = ((amounts - with_pod) * 100 // amounts).sum(axis=0) // 2
    change = _balance(with_pod / amounts) - _balance(requested / amounts)
    scores = numpy.where(fits, least + 50 + (50 + change) // 2, -1)
    return numpy.flatnonzero(scores == scores.max())


def _balance(parts: Array) -> Array:
    cpu, memory = numpy.minimum(parts, 1)
    return numpy.asarray((1 - numpy.abs(cpu - memory) / 2) * 100).astype(int)
