"""Keys that only the scheduler may write, and label values."""

from hami.codec.keys import is_label_value, is_scheduler_owned
from testing.cases import cases


@cases(
    "key, owned",
    ("hami.io/vgpu-node", True),
    ("hami.io/vgpu-time", True),
    ("hami.io/bind-phase", True),
    ("hami.io/bind-time", True),
    ("hami.io/vgpu-mig-allocations", True),
    ("hami.io/vgpu-devices-to-allocate", True),
    ("hami.io/vgpu-devices-allocated", True),
    ("hami.io/Ascend910B4-1-devices-allocated", True),
    ("hami.io/Biren-devices-to-allocate", True),
    ("hami.io/kunlun-allocated", True),
    ("hami.io/node-scheduler-policy", False),
    ("hami.io/gpu-scheduler-policy", False),
    ("hami.io/device-scoring-weights", False),
    ("hami.io/webhook", False),
    ("nvidia.com/use-gputype", False),
    ("example.com/vgpu-devices-allocated", False),
    ("hami.io/vgpu-devices-allocated-by", False),
)
def test_owned_by_the_scheduler(key, owned):
    assert is_scheduler_owned(key) is owned


@cases(
    "text, legal",
    ("", True),
    ("node-a", True),
    ("ip-10-0-0-1.ec2.internal", True),
    ("N_1", True),
    ("a" * 63, True),
    ("a" * 64, False),
    ("-a", False),
    ("a.", False),
    ("a/b", False),
    ("ä", False),
    ("a\n", False),
    ("a b", False),
)
def test_label_values(text, legal):
    assert is_label_value(text) is legal
