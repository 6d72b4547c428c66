"""``python -m vergence``: the command line."""

from vergence.cli.commands import main

if __name__ == "__main__":
    main()
