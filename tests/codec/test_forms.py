"""The forms of texts that people write: what is read, as what, and what is said of the rest."""

from hami.codec.forms import (
    BOOLEAN,
    MAX_NAMES,
    Mistake,
    NameList,
    Number,
    Switches,
    Weighted,
    Words,
)
from testing.cases import cases

ONE = Words(("binpack", "spread"))
LIST = Words(("binpack", "spread", "numa"), is_list=True)
UUIDS = NameList("UUIDs")
PERCENT = Number(1, 100, "percentage of a GPU")


@cases(
    "form, text, canonical",
    (ONE, "spread", "spread"),
    (ONE, "Spread", "spread"),
    (ONE, " SPREAD\n", "spread"),
    (LIST, "numa", "numa"),
    (LIST, "binpack,numa", "binpack,numa"),
    (LIST, "BinPack , numa,", "binpack,numa"),
    (BOOLEAN, "true", "true"),
    (BOOLEAN, "TRUE", "true"),
    (BOOLEAN, "1", "1"),
    (UUIDS, "GPU-a, GPU-b", "GPU-a, GPU-b"),
    (UUIDS, "GPU-a,\nGPU-b,\n", "GPU-a,\nGPU-b,\n"),
    (UUIDS, "Tesla V100-PCIE-32GB", "Tesla V100-PCIE-32GB"),
    (PERCENT, "100", "100"),
    (Weighted(), "slot=1,core=1,memory=3", "slot=1,core=1,memory=3"),
    (Weighted(), "Memory=3, Slot=1, core=0", "memory=3, slot=1, core=0"),
    (Switches(), '{"main": "false"}', '{"main": "false"}'),
    (Switches(), '{"main": "False"}', '{"main":"false"}'),
)
def test_what_is_read(form, text, canonical):
    assert form.read(text) == canonical


@cases(
    "form, text, message",
    (ONE, "binpak", "expected binpack or spread; did you mean binpack?"),
    (ONE, "bin", "expected binpack or spread; did you mean binpack?"),
    (ONE, "fast", "expected binpack or spread"),
    (ONE, "spread,binpack", "expected binpack or spread; did you mean binpack?"),
    (ONE, "spread" * 1000, "expected binpack or spread"),
    (
        LIST,
        "binpack,nume",
        "expected binpack, spread or numa, or several of them separated by commas; did you mean numa?",
    ),
    (LIST, " , ", "expected binpack, spread or numa, or several of them separated by commas"),
    (BOOLEAN, "yes", "expected true or false"),
    (BOOLEAN, "tru", "expected true or false; did you mean true?"),
    (UUIDS, '["GPU-a"]', "expected UUIDs, separated by commas, without brackets and quotes"),
    (UUIDS, "GPU-a;GPU-b", "expected UUIDs, separated by commas, without brackets and quotes"),
    (UUIDS, "GPU-a\nGPU-b", "expected UUIDs, separated by commas, without brackets and quotes"),
    (UUIDS, ",", "expected UUIDs, separated by commas, without brackets and quotes"),
    (UUIDS, "a," * MAX_NAMES, f"expected at most {MAX_NAMES} items"),
    (PERCENT, "0", "expected a whole number from 1 to 100, the percentage of a GPU"),
    (PERCENT, "60%", "expected a whole number from 1 to 100, the percentage of a GPU"),
    (PERCENT, "060", "expected a whole number from 1 to 100, the percentage of a GPU"),
    (
        Weighted(),
        "slot=1,core=1,memry=3",
        "expected weights such as slot=1,core=1,memory=3: all three, whole numbers, not all 0 "
        '(unknown weight "memry")',
    ),
    (
        Switches(),
        '{"main": false}',
        """expected an object such as {"main": "false"}, with true or false in quotes for names of containers""",
    ),
    (
        Switches(),
        '{"main": "fals"}',
        """expected an object such as {"main": "false"}, with true or false in quotes for names of containers; """
        "did you mean false?",
    ),
    (
        Switches(),
        "main=false",
        """expected an object such as {"main": "false"}, with true or false in quotes for names of containers""",
    ),
)
def test_what_is_a_mistake(form, text, message):
    mistake = form.read(text)
    assert isinstance(mistake, Mistake)
    assert str(mistake) == message
