"""A table under random changes, beside a plain record of what it was told."""

from hami.state.table import Table
from testing.builders import booking, charge, gpu
from testing.seeds import some_device, some_scope

VENDORS = ("NVIDIA", "NVIDIA", "DCU")


class Mirror:
    """*table* gets change by change what ``fresh()`` builds at once."""

    def __init__(self, names, pods=12):
        self.table = Table()
        self.names = names
        self.uids = [f"pod{number}" for number in range(pods)]
        self.inventories = {}
        self.labels = {}
        self.bookings = {}

    @classmethod
    def filled(cls, rng, count):
        """One of *count* nodes with random devices."""
        mirror = cls([f"n{number}" for number in range(count)])
        for name in mirror.names:
            mirror.set_devices(rng, name, "NVIDIA")
        return mirror

    def fresh(self):
        """A table that was told only the outcome."""
        table = Table()
        for (node, vendor), devices in sorted(self.inventories.items()):
            table.set_devices(node, vendor, devices)
        for node, labels in self.labels.items():
            table.set_labels(node, labels)
        for held in self.bookings.values():
            table.bookings.put(held)
        table.refresh()
        return table

    def change(self, rng):
        """Tell the table something."""
        match rng.randrange(11):
            case 0 | 1 | 2:
                self.set_devices(rng, rng.choice(self.names), rng.choice(VENDORS))
            case 3:
                self.drop(rng.choice(self.names))
            case 10:
                self.set_labels(rng, rng.choice(self.names))
            case 4 | 5:
                self.table.bookings.pop(uid := rng.choice(self.uids))
                self.bookings.pop(uid, None)
            case _:
                self.book(rng, rng.choice(self.uids), rng.choice(self.names))

    def set_devices(self, rng, node, vendor):
        devices = tuple(
            gpu(f"{vendor}-{place}", index=place, **some_device(rng) | {"vendor": vendor})
            for place in range(rng.randrange(5))
        )
        self.table.set_devices(node, vendor, devices)
        self.inventories[node, vendor] = devices

    def set_labels(self, rng, node):
        labels = {key: rng.choice("xy") for key in ("zone", "disk") if rng.random() < 0.7}
        if rng.random() < 0.1:
            self.table.set_labels(node, None)
            self.labels.pop(node, None)
        else:
            self.table.set_labels(node, labels)
            self.labels[node] = labels

    def drop(self, node):
        self.table.remove_node(node)
        self.inventories = {
            key: devices for key, devices in self.inventories.items() if key[0] != node
        }

    def book(self, rng, uid, node):
        charges = (
            charge(
                f"{rng.choice(VENDORS)}-{rng.randrange(5)}",
                rng.randrange(3),
                rng.randrange(500),
                rng.randrange(50),
            )
            for _ in range(rng.randrange(3))
        )
        held = booking(uid, node, *charges, namespace=rng.choice(("a", "b")), scope=some_scope(rng))
        self.table.bookings.put(held)
        self.bookings[uid] = held
