"""Acme's cards: an example of a vendor that HAMi does not know. Memory is shared, cores are not."""

from hami.errors import MalformedInput
from hami.vendors.inventory import registered
from hami.vendors.spec import Annotations, Decision, Resources, Rule, SelectorKeys, Vendor


def cards(section):
    """Returns the vendor as configured by section ``acme`` of the device configuration."""
    count = section.get("resourceCountName", "acme.example/card")
    if not isinstance(count, str):
        raise MalformedInput("resourceCountName", count, "expected a resource name")
    return Vendor(
        key="Acme",
        resources=Resources(count=count, memory="acme.example/card-memory"),
        annotations=Annotations(
            register="hami.io/node-acme-register",
            handshake="hami.io/node-handshake-acme",
            to_allocate="hami.io/acme-devices-to-allocate",
            allocated="hami.io/acme-devices-allocated",
            selectors=SelectorKeys(
                use_uuids=("acme.example/use-uuid",), nouse_uuids=("acme.example/nouse-uuid",)
            ),
        ),
        decision=Decision(
            inventory=registered,
            rules=(Rule.HEALTH, Rule.UUID, Rule.SLOTS, Rule.MUTEX, Rule.MEMORY),
        ),
    )
