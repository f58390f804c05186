"""Single precision, written down once more."""

import struct


def f32(value):
    """The number of single precision that is nearest to *value*."""
    return struct.unpack("f", struct.pack("f", value))[0]
