"""What every vendor makes of a container, and which of its devices the container gets: the table of all vendors.

A vendor is added as a file of rows.
"""

import pytest

from hami.errors import MalformedInput
from hami.vendors.request import device_request
from testing.builders import container
from testing.vendor_rows import admitted
from tests.vendors import (
    rows_amd,
    rows_ascend,
    rows_aws,
    rows_cambricon,
    rows_enflame,
    rows_hygon,
    rows_iluvatar,
    rows_kunlun,
    rows_metax,
    rows_mthreads,
    rows_nvidia,
    rows_vastai,
    rows_whole,
)

TABLES = (
    rows_amd,
    rows_ascend,
    rows_aws,
    rows_cambricon,
    rows_enflame,
    rows_hygon,
    rows_iluvatar,
    rows_kunlun,
    rows_metax,
    rows_mthreads,
    rows_nvidia,
    rows_vastai,
    rows_whole,
)


def rows(name):
    return [row for table in TABLES for row in getattr(table, name)]


@pytest.mark.parametrize("row", rows("ASKS"))
def test_ask(row):
    row.check()


@pytest.mark.parametrize("row", rows("DENIED"))
def test_denied(row):
    with pytest.raises(MalformedInput) as caught:
        admitted(row.vendor, row.limits, row.requests, row.annotations)
    assert str(caught.value) == row.why
    if row.void:
        assert device_request(row.vendor, container(row.limits, requests=row.requests)) is None


@pytest.mark.parametrize("row", rows("FITS"))
def test_fit(row):
    row.check()
