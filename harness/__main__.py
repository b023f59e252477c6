"""``python -m harness`` is the ``starquake`` command."""

from harness.cli_entry import main

main()
