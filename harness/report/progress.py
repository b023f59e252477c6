"""Live progress of a gate run on stderr: a status line on a terminal, one line a milestone in a log."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.markup import escape
from rich.status import Status

from harness.gate.finding import Finding
from harness.tally import Tally


class Progress:
    """Implements ``harness.gate.run.Watcher``. Use as a context manager."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._status: Status | None = console.status("starting") if console.is_terminal else None
        self._pair = ""
        self._activity = ""
        self._counts: dict[str, int] = {}
        self._judged = 0
        self._anomalies = 0

    def __enter__(self) -> Progress:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._status is not None:
            self._status.stop()

    def pair(self, system: str, client: str) -> None:
        self._pair = f"{system} x {client}"
        self._counts, self._judged, self._anomalies = {}, 0, 0
        self._console.print(f"[bold]{escape(self._pair)}[/bold]")
        self.activity("starting")

    def activity(self, text: str) -> None:
        self._activity = text
        self._refresh()

    def progress(self, family: str, runs: int, tally: Tally) -> None:
        self._counts[family] = runs
        self._judged, self._anomalies = tally.judged_clauses, tally.anomaly_names
        self._refresh()

    def finding(self, finding: Finding, accepted: str) -> None:
        style = "yellow" if accepted else "bold red"
        self._console.print(
            f"  [{style}]{accepted or 'new'}[/] {finding.expect.clause} {escape(finding.expect.anomaly)}"
            f" [dim]{escape(finding.found_by)}[/dim]"
        )

    def _refresh(self) -> None:
        if self._status is None:
            return
        counts = " ".join(f"{family} {count}" for family, count in self._counts.items())
        self._status.update(
            f"{escape(self._pair)} [cyan]{escape(self._activity)}[/cyan]  {counts}"
            f"  [green]{self._judged} clauses judged[/green] [red]{self._anomalies} anomalies[/red]"
        )
