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

# Named in the documentation, so that asking for them is no typing mistake.
PLANNED = ("java", "go", "node", "rust")


def resolve(spec: str, *, log: Path | None = None) -> AdapterProcess:
    """The client called ``spec``, not yet started; its stderr will go to ``log``.

    Raises :class:`~harness.clients.client.UnknownClient` for any other name.
    """
    module = ADAPTERS.get(spec)
    if module is None:
        there_are = f"there are: {', '.join(sorted(ADAPTERS))} (`starquake clients list`)"
        if spec.split("@", 1)[0] in (*PLANNED, *ADAPTERS):
            raise UnknownClient(f"the client {spec!r} is not available in this version; {there_are}")
        raise UnknownClient(f"there is no client {spec!r}; {there_are}")
    # -P keeps the working directory off the import path: a run folder may hold files named like modules. What this
    # process imports from must be handed on instead, because the package may be run from a source tree.
    root = Path(__file__).resolve().parent.parent.parent
    path = os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")]))
    return AdapterProcess([sys.executable, "-P", "-m", module], name=spec, log=log, env={"PYTHONPATH": path})
