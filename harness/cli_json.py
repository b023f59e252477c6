"""A command under ``--json`` that ends before its result still ends with a line of type ``summary`` on stdout."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, cast

import typer
from typer.core import TyperGroup

from harness.verdict import EXIT_USAGE

# The class of every error in the arguments: older versions of typer take it from click, newer ones have their own.
WRONG_USAGE = cast(tuple[type[Exception], ...], typer.BadParameter.__bases__)

_ASKED = "harness.cli_json"


def tell_end(code: int, error: str) -> None:
    """The last line: ``{"type": "summary", "exit_code", "error"}``."""
    # Where stdout is what cannot be written, stderr has the message already.
    with suppress(OSError):
        typer.echo(json.dumps({"type": "summary", "exit_code": code, "error": error}))


class Commands(TyperGroup):
    """Commands whose arguments, too, are refused with a last line when ``--json`` is among them."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.meta[_ASKED] = "--json" in args
        with _refusals_told(ctx):
            return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        with _refusals_told(ctx):
            return super().invoke(ctx)


@contextmanager
def _refusals_told(ctx: Any) -> Iterator[None]:
    try:
        yield
    except WRONG_USAGE as error:
        if ctx.meta[_ASKED]:
            tell_end(EXIT_USAGE, str(error))
        raise
