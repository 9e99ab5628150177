"""`python -m stepwell`."""

import sys


def start() -> int:
    """Run the command line; Ctrl-C while it is being imported is no error either."""
    try:
        from stepwell.cli.main import main

        return main()
    except KeyboardInterrupt:
        print("stepwell: stopped.", file=sys.stderr)
        return 130


if __name__ == "__main__":
    raise SystemExit(start())
