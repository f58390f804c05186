"""What is set aside is looked through once more when it is set aside anew, and by nobody in between."""

import gc
import weakref

from hami.runtime.interpreter import freeze_gc


class Knot:
    """Garbage that only a search can find, once nobody has it."""

    def __init__(self):
        self.itself = self


def test_what_was_set_aside_is_left_out_of_the_search_until_it_is_set_aside_anew():
    knot = Knot()
    seen = weakref.ref(knot)
    try:
        freeze_gc()
        del knot
        gc.collect()
        assert gc.get_freeze_count() > 0 and seen() is not None
        freeze_gc()
        assert seen() is None
    finally:
        gc.unfreeze()
