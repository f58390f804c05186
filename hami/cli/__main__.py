"""``python -m hami.cli``: the same as the console script ``hami``."""

from hami.cli import console_script

if __name__ == "__main__":
    console_script()
