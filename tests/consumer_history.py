"""Hand-made histories of consumers: the events a consuming run always has, a line each."""

from __future__ import annotations

from typing import Any

from harness.history.event import Event
from tests.history_builder import CONSUMER, SUBSCRIPTION, TOPIC, History, digest

SECOND = 1000


class ConsumerHistory(History):
    """``wait`` lets time pass; ids are (ledger, entry); frames go over both taps unless a side is named."""

    def __init__(self) -> None:
        super().__init__()
        self._waited = 0
        self._requests = 0

    def add(self, **columns: Any) -> Event:
        columns.setdefault("time_ns", len(self.events) * 1_000_000 + self._waited)
        return super().add(**columns)

    def wait(self, milliseconds: int) -> None:
        self._waited += milliseconds * 1_000_000

    # --- the consumer ------------------------------------------------------------------------------------------

    def consumer(self, name: str = CONSUMER, kind: str = "exclusive", conn: int = 1, **options: Any) -> None:
        """Create a consumer through the API, subscribe it on the wire and grant its queue (default 10)."""
        options.setdefault("queue", 10)
        made = self.invoke(
            "consumer", consumer=name, subscription=SUBSCRIPTION, extra={"type": kind, "options": options}
        )
        self.subscribe(name, kind, conn)
        self.flow(options["queue"], name, conn)
        self.complete(made)

    def subscribe(self, name: str = CONSUMER, kind: str = "exclusive", conn: int = 1) -> None:
        self._requests += 1
        extra = {"consumer_id": 1, "type": kind, "initial_position": "earliest", "durable": True}
        self.wire("SUBSCRIBE", name, conn, request_id=self._requests, extra=extra)
        self.answer(conn)

    def answer(self, conn: int = 1) -> None:
        """SUCCESS for the newest request."""
        for side in ("broker", "client"):
            self.frame("SUCCESS", side=side, to="client", conn=conn, topic=None, request_id=self._requests)

    def request(self, kind: str, name: str = CONSUMER, conn: int = 1) -> None:
        self._requests += 1
        self.wire(kind, name, conn, request_id=self._requests)

    def wire(
        self, kind: str, name: str = CONSUMER, conn: int = 1, *, to: str = "broker", sides: str = "both", **columns: Any
    ) -> None:
        """A frame of a consumer at both taps, or at one (``sides``)."""
        extra = {"consumer_id": 1} | columns.pop("extra", {})
        order = ("client", "broker") if to == "broker" else ("broker", "client")
        for side in order:
            if sides in ("both", side):
                self.frame(
                    kind,
                    side=side,
                    to=to,
                    conn=conn,
                    consumer=name,
                    subscription=SUBSCRIPTION,
                    extra=dict(extra),
                    **columns,
                )

    def flow(self, permits: int, name: str = CONSUMER, conn: int = 1) -> None:
        self.wire("FLOW", name, conn, permits=permits)

    def message(
        self,
        ledger: int,
        entry: int,
        payload: str | None = None,
        name: str = CONSUMER,
        conn: int = 1,
        sides: str = "both",
        count: int = 0,
        **columns: Any,
    ) -> None:
        columns.setdefault("num_messages", 1)
        if payload is not None or columns["num_messages"] == 1:
            columns.setdefault("payload_digest", digest(payload or f"{ledger}:{entry}"))
        self.wire(
            "MESSAGE",
            name,
            conn,
            to="client",
            sides=sides,
            ledger_id=ledger,
            entry_id=entry,
            redelivery_count=count,
            **columns,
        )

    def ack(
        self,
        *positions: tuple[int, int],
        name: str = CONSUMER,
        conn: int = 1,
        cumulative: bool = False,
        sides: str = "both",
        ack_set: list[int] | None = None,
        **columns: Any,
    ) -> None:
        """An ACK frame."""
        ids = [
            {"ledger": ledger, "entry": entry} | ({"ack_set": ack_set} if ack_set else {})
            for ledger, entry in positions
        ]
        self.wire(
            "ACK",
            name,
            conn,
            sides=sides,
            ack_type="cumulative" if cumulative else "individual",
            extra={"ids": ids},
            **columns,
        )

    def redeliver(self, *positions: tuple[int, int], name: str = CONSUMER, conn: int = 1, sides: str = "both") -> None:
        ids = [{"ledger": ledger, "entry": entry} for ledger, entry in positions]
        self.wire("REDELIVER_UNACKNOWLEDGED_MESSAGES", name, conn, sides=sides, extra={"ids": ids})

    def closed(self, conn: int = 1, by: str = "client") -> None:
        for side in ("client", "broker"):
            self.frame("CONNECTION_CLOSED", side=side, conn=conn, topic=None, extra={"by": by})

    # --- the application ----------------------------------------------------------------------------------------

    def call(
        self, verb: str, at: tuple[int, int] | None = None, name: str = CONSUMER, outcome: str = "ok", **columns: Any
    ) -> Event:
        """A whole consumer call: ``ack``, ``ack_cumulative``, ``nack``, ``seek``, ``close``, ``unsubscribe``."""
        if at is not None:
            columns |= {"ledger_id": at[0], "entry_id": at[1]}
        made = self.invoke(verb, consumer=name, subscription=SUBSCRIPTION, **columns)
        return self.complete(made, outcome)

    def receive(
        self, ledger: int, entry: int, payload: str | None = None, name: str = CONSUMER, count: int = 0, **columns: Any
    ) -> None:
        made = self.invoke("receive", consumer=name, subscription=SUBSCRIPTION)
        columns.setdefault("payload_digest", digest(payload or f"{ledger}:{entry}"))
        self.complete(made, ledger_id=ledger, entry_id=entry, redelivery_count=count, **columns)

    def nothing(self, name: str = CONSUMER) -> None:
        """A receive that waited in vain."""
        made = self.invoke("receive", consumer=name, subscription=SUBSCRIPTION)
        self.wait(500)
        self.complete(made, extra={"empty": True})

    def delivered(
        self,
        ledger: int,
        entry: int,
        payload: str | None = None,
        name: str = CONSUMER,
        conn: int = 1,
        count: int = 0,
        **columns: Any,
    ) -> None:
        """MESSAGE and the receive that takes it."""
        self.message(ledger, entry, payload, name, conn, count=count, **columns)
        self.receive(ledger, entry, payload, name, count)

    def published(self, ledger: int, entry: int, payload: str | None = None) -> None:
        """SEND and receipt of a plain message."""
        self.both(
            "SEND",
            producer="p",
            sequence_id=entry,
            payload_digest=digest(payload or f"{ledger}:{entry}"),
            num_messages=1,
        )
        self.both("SEND_RECEIPT", to="client", producer="p", sequence_id=entry, ledger_id=ledger, entry_id=entry)

    def end(self, *entries: tuple[int, int], drained: bool = True) -> None:
        """Quiet, then the final read."""
        self.wait(3 * SECOND)
        self.quiescent(drained)
        for ledger, entry in entries:
            self.entry(ledger, entry, f"{ledger}:{entry}")
        self.log_end()


__all__ = ["CONSUMER", "SECOND", "SUBSCRIPTION", "TOPIC", "ConsumerHistory", "digest"]
