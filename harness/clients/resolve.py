"""Names of clients, as given to ``--client``, to the processes behind them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from harness.clients.adapter_process import AdapterProcess
from harness.clients.client import UnknownClient

ADAPTERS = {
    "python": "harness.clients.python_adapter",
    "reference": "harness.clients.reference_adapter",
}
"""Client name to the module that is its adapter."""


def resolve(spec: str, *, log: Path | None = None) -> AdapterProcess:
    """The client called ``spec``, not yet started; its stderr will go to ``log``.

    Raises :class:`~harness.clients.client.UnknownClient` for any other name.
    """
    module = ADAPTERS.get(spec)
    if module is None:
        raise UnknownClient(f"there is no client {spec!r}; there are: {', '.join(sorted(ADAPTERS))}")
    # -P keeps the working directory off the import path: a run folder may hold files named like modules. What this
    # process imports from must be handed on instead, because the package may be run from a source tree.
    root = Path(__file__).resolve().parent.parent.parent
    path = os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")]))
    return AdapterProcess([sys.executable, "-P", "-m", module], name=spec, log=log, env={"PYTHONPATH": path})
