"""``python -m hami.cli``: the same as the console script ``hami``."""

from hami.cli import main

if __name__ == "__main__":
    main(prog_name="hami")
