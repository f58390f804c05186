"""Files that others read while they are replaced."""

import errno
import os

import pytest

from hami.runtime.files import check_writable, write_atomically


def test_a_write_that_fails_names_the_file_and_leaves_nothing(tmp_path, monkeypatch):
    def fsync(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(OSError) as caught:
        write_atomically(tmp_path / "limits", b"hami-limits 1")
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(tmp_path / "limits"))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_can_be_written_is_left_as_it_was(tmp_path):
    check_writable(tmp_path)
    check_writable(tmp_path / "not made yet")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    def write(handle, data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", write)
    with pytest.raises(OSError, match="No space left on device") as caught:
        check_writable(tmp_path)
    assert caught.value.filename == str(tmp_path)
