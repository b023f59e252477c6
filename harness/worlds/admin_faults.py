"""What a schedule has the broker's admin service do, in either world."""

from __future__ import annotations

from typing import Any

from harness.systems.admin import Admin, AdminRefused, AdminUnreachable
from harness.worlds.downtime import Downtime
from harness.worlds.driver import Driver
from harness.worlds.fault_attributes import OneTopic, Partitions, Quota, Subscription, attributes_of
from harness.worlds.plan import Fault
from harness.worlds.record import Records, record_fault, record_not_injected


def subject(fault: Fault, driver: Driver) -> dict[str, str]:
    """The topic and the subscription that a fault is about, as columns of an event; empty when it is about neither."""
    attributes, about = attributes_of(fault), dict[str, str]()
    if isinstance(attributes, OneTopic | Subscription | Partitions):
        about["topic"] = driver.topic(attributes.topic)
    if isinstance(attributes, Subscription):
        about["subscription"] = attributes.subscription
    return about


class AdminFaults:
    """Those of one session, on its own topics and namespace. All but ``dedup``, which has a state of its own."""

    def __init__(self, admin: Admin, recorder: Records, driver: Driver, namespace: str, downtime: Downtime) -> None:
        self._admin = admin
        self._recorder = recorder
        self._driver = driver
        self._namespace = namespace
        self._downtime = downtime

    async def carry_out(self, fault: Fault) -> bool:
        """Record and do it; whether the broker did. Raises AdminUnreachable when it is up and does not answer.

        A refusal is recorded behind the fault, with the broker's words.
        """
        attributes = attributes_of(fault)
        about = subject(fault, self._driver)
        record_fault(self._recorder, fault, **about)
        if self._downtime.on_purpose:
            record_not_injected(self._recorder, fault, "the broker is down or paused", **about)
            return False
        before = self._downtime.count
        try:
            await self._ask(fault.kind, attributes)
        except AdminRefused as error:
            record_not_injected(self._recorder, fault, str(error), **about)
            return False
        except AdminUnreachable as error:
            if self._downtime.count == before:
                raise
            record_not_injected(self._recorder, fault, str(error), **about)
            return False
        return True

    async def _ask(self, kind: str, attributes: Any) -> None:
        admin = self._admin
        if isinstance(attributes, Quota):
            await admin.set_backlog_quota(
                self._namespace, attributes.policy, size=attributes.bytes, seconds=attributes.seconds
            )
        elif isinstance(attributes, Subscription):
            await admin.delete_subscription(
                self._driver.topic(attributes.topic), attributes.subscription, force=attributes.force
            )
        elif isinstance(attributes, Partitions):
            await admin.grow_partitions(self._driver.topic(attributes.topic), attributes.partitions)
        elif kind == "unload":
            await admin.unload_topic(self._driver.topic(attributes.topic))
        elif kind == "terminate":
            await admin.terminate_topic(self._driver.topic(attributes.topic))
        else:
            await admin.unload_namespace(self._namespace)
