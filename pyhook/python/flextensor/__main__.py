"""`python -m flextensor`: the same as the `flextensor` command, for places where scripts are not on the
path."""

import sys

from flextensor.cli import main

sys.exit(main())
