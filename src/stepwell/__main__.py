"""`python -m stepwell`."""

from stepwell.cli.main import main

raise SystemExit(main())
