"""Arguments of programs that are called by hand: one that cannot be used ends a program before it starts anything."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

__all__ = ["file_to_read", "file_to_write", "folder_to_write", "number_from"]


def number_from(least: int) -> Callable[[str], int]:
    """Returns the type of whole numbers from *least*."""

    def parse(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"expected a whole number, {least} or more: {text!r}")
        return int(text)

    return parse


def file_to_read(text: str) -> Path:
    """Returns the path of a file with text. Raises: ArgumentTypeError."""
    path = Path(text)
    try:
        path.read_text()
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{text}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise argparse.ArgumentTypeError(f"{text}: not UTF-8 text: {error.reason}") from error
    return path


def folder_to_write(text: str) -> Path:
    """Returns the path of a directory, which exists then. Raises: ArgumentTypeError."""
    path = Path(text)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{text}: {error.strerror}") from error
    return path


def file_to_write(text: str) -> Path:
    """Returns the path of a file that may be new, in a directory, which exists then. Raises: ArgumentTypeError."""
    path = Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{text}: Is a directory")
    folder_to_write(str(path.parent))
    return path
