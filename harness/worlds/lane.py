"""What one open session of the real world has for itself: taps and links between each plan client and the broker."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any

from harness.faults.tap import Tap
from harness.faults.toxiproxy import Link, Toxiproxy
from harness.history.event import Event
from harness.history.recorder import Recorder
from harness.systems.access import OPEN, Access
from harness.systems.system import Address

CLIENT_HANDLES = ("a", "b")


@dataclass(slots=True)
class Chain:
    """What one plan client dials: tap B, a Toxiproxy link, tap A."""

    client_tap: Tap
    link: Link
    broker_tap: Tap
    url: str

    async def change(self, work: Awaitable[None]) -> None:
        """Carry out a change of the link, while no receiver slows what Toxiproxy has under way (see the tap)."""
        with self.client_tap.without_back_pressure(), self.broker_tap.without_back_pressure():
            await work


class RecorderSwitch:
    """The taps outlive sessions: this hands what they record to the session that is open, and drops it between two."""

    def __init__(self) -> None:
        self.current: Recorder | None = None

    def record(self, **columns: Any) -> Event:
        if self.current is None:
            return Event()
        return self.current.record(**columns)


class Lane:
    """A chain for each plan client. It outlives sessions, and restarts of the broker, whose ports stay the same."""

    def __init__(self) -> None:
        self.switch = RecorderSwitch()
        self.chains: dict[str, Chain] = {}

    async def start(self, name: str, address: Address, toxiproxy: Toxiproxy, access: Access = OPEN) -> None:
        for handle in CLIENT_HANDLES:
            broker_tap = Tap("broker", (address.host, address.port), self.switch, tls=access.stream_context)
            broker_host, broker_port = await broker_tap.start()
            link = await toxiproxy.proxy(f"{name}-{handle}", f"{broker_host}:{broker_port}")
            client_tap = Tap("client", link.listen, self.switch, rewrite_to="self")
            host, port = await client_tap.start()
            self.chains[handle] = Chain(client_tap, link, broker_tap, f"pulsar://{host}:{port}")

    def failure(self) -> str:
        """What went wrong inside a tap; empty when nothing did."""
        taps = [tap for chain in self.chains.values() for tap in (chain.client_tap, chain.broker_tap)]
        return "; ".join(str(tap.failure) for tap in taps if tap.failure)
