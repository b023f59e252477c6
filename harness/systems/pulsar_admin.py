"""Pulsar's admin REST service, version 2.8 to 4.2, as ``harness.systems.admin.Admin``.

Comments name the version on which a quirk was seen. Statistics are read by ``pulsar_admin_stats``.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar
from urllib.parse import quote

from harness.systems.admin import AdminExists, AdminRefused, InternalStats, QuotaPolicy, TopicStats
from harness.systems.pulsar_admin_http import TIMEOUT_S, AdminHttp, Answer
from harness.systems.pulsar_admin_stats import UnexpectedShape, internal_stats, terminated_at, topic_stats
from harness.wire.message_id import Position

T = TypeVar("T")

AGREEMENT_S = 5.0
"""How long a namespace may take to say what it was just told."""

POLL_S = 0.05

LISTINGS = 3
"""How often the storage of a topic is asked for until its ledgers hold as many entries as it says that there are."""

REMOVALS = 20
"""Rounds of deleting what is in a namespace: clients that are still connected may bring topics back meanwhile."""


class PulsarAdmin:
    """``token`` goes with every question; ``tls`` replaces the system's certificates where the URL is https.

    ``timeout_s`` holds for each question. Errors are those of ``Admin``; ``SetupError`` for a URL that is none.
    """

    def __init__(
        self,
        admin_url: str,
        *,
        token: str | None = None,
        tls: ssl.SSLContext | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self._http = AdminHttp(admin_url, token=token, tls=tls, timeout_s=timeout_s)

    async def aclose(self) -> None:
        """Nothing stays open between two calls: this ends those that are under way."""
        await self._http.aclose()

    # ------------------------------------------------------------------------------------------------ the service

    async def version(self) -> str:
        """As the broker calls itself, ``4.0.7``. The answer is plain text."""
        return (await self._http.ask("GET", "brokers/version")).granted().text.strip().strip('"')

    async def configuration(self) -> dict[str, str]:
        """All settings the broker runs with. Only superusers may ask."""
        answer = (await self._http.ask("GET", "brokers/configuration/runtime")).granted()
        body = answer.body()
        if not isinstance(body, dict):
            raise answer.nonsense("no settings")
        return {str(name): str(value) for name, value in body.items()}

    # ------------------------------------------------------------------------------------------------ namespaces

    async def create_namespace(self, namespace: str) -> None:
        answer = await self._http.ask("PUT", _namespace(namespace))
        if answer.status == 409:
            raise AdminExists(str(answer.refusal()))
        answer.granted()

    async def remove_namespace(self, namespace: str) -> None:
        """With all its topics, whoever is connected to them; one that does not exist is removed already.

        Brokers refuse to do it at once unless they run with forceDeleteNamespaceAllowed (405 on 4.0.7), so that its
        topics are deleted one by one there.
        """
        path = _namespace(namespace)
        # Deleting a namespace takes the broker longer than any other word: 4.0.7 waits for each of its topics.
        answer = await self._http.ask("DELETE", path, params={"force": "true"})
        for _ in range(REMOVALS):
            if answer.ok or answer.missing:
                return
            if answer.status in (401, 403):
                raise answer.refusal()
            # Otherwise clients that reconnect make their topics again as soon as they are gone.
            await self._http.ask(
                "POST",
                f"{path}/autoTopicCreation",
                content={"allowAutoTopicCreation": False, "topicType": "partitioned"},
            )
            await self._remove_topics(namespace)
            answer = await self._http.ask("DELETE", path)
            if not (answer.ok or answer.missing):
                await asyncio.sleep(POLL_S)
        if not (answer.ok or answer.missing):
            raise answer.refusal()

    async def _remove_topics(self, namespace: str) -> None:
        for topic in await self._topics(namespace, "/partitioned"):
            await self._http.ask("DELETE", f"{_topic(topic)}/partitions", params={"force": "true"})
        for topic in await self._topics(namespace, ""):
            await self._http.ask("DELETE", _topic(topic), params={"force": "true"})

    async def _topics(self, namespace: str, kind: str) -> list[str]:
        """Complete names; partitions are topics of their own. Empty when the namespace is gone."""
        _namespace(namespace)
        answer = await self._http.ask("GET", f"persistent/{quote(namespace)}{kind}")
        if answer.missing:
            return []
        found = answer.granted().body()
        if not isinstance(found, list):
            raise answer.nonsense("no list of topics")
        return [str(topic) for topic in found]

    async def topics(self, namespace: str) -> list[str]:
        """The persistent topics there are, partitions among them (but not the name they share)."""
        return await self._topics(namespace, "")

    async def unload_namespace(self, namespace: str) -> None:
        """2.8.0 was once seen to fail (500), right after a subscription was deleted under its consumer; its topics then
        served nobody for half a minute.
        """
        (await self._http.ask("PUT", f"{_namespace(namespace)}/unload")).granted()

    async def set_deduplication(self, namespace: str, enabled: bool) -> None:
        path = _namespace(namespace)
        (await self._http.ask("POST", f"{path}/deduplication", content=enabled)).granted()
        await self._until(
            partial(self._deduplication, path), enabled, f"{namespace} does not say that deduplication is {enabled}"
        )

    async def _deduplication(self, path: str) -> bool | None:
        """As the namespace says; None when it says nothing, and the broker's default holds (empty on 4.0.7)."""
        answer = await self._http.ask("GET", f"{path}/deduplication")
        if answer.status == 405:
            policies = (await self._http.ask("GET", path)).granted()
            body = policies.body()
            value = body.get("deduplicationEnabled") if isinstance(body, dict) else None
            return value if isinstance(value, bool) else None
        return {"true": True, "false": False}.get(answer.granted().text.strip())

    async def set_backlog_quota(
        self, namespace: str, policy: QuotaPolicy, *, size: int | None = None, seconds: int | None = None
    ) -> None:
        """At least one of the two limits. Raises ``AdminRefused`` when the namespace does not show it afterwards."""
        path = _namespace(namespace)
        limits = {"destination_storage": ("limitSize", size), "message_age": ("limitTime", seconds)}
        if size is None and seconds is None:
            raise AdminRefused("a backlog quota needs a limit: bytes, or seconds")
        for kind, (field, limit) in limits.items():
            if limit is None:
                continue
            quota = {"limitSize": -1, "limitTime": -1, "policy": policy, field: limit}
            told = await self._http.ask(
                "POST", f"{path}/backlogQuota", params={"backlogQuotaType": kind}, content=quota
            )
            told.granted()
            await self._until(
                partial(self._quota, path, kind, field),
                (policy, limit),
                f"{namespace} does not show the quota of {kind} it was given",
            )

    async def _quota(self, path: str, kind: str, field: str) -> tuple[Any, Any] | None:
        answer = (await self._http.ask("GET", f"{path}/backlogQuotaMap")).granted()
        body = answer.body()
        quota = body.get(kind) if isinstance(body, dict) else None
        return (quota.get("policy"), quota.get(field)) if isinstance(quota, dict) else None

    # ------------------------------------------------------------------------------------------------ topics

    async def topic_stats(self, topic: str) -> TopicStats:
        """Of a topic, a partition, or a partitioned topic as a whole (the sum of its partitions).

        The backlog is exact: the quick one of 2.8 to 4.2 is the difference of two counters, which a restart resets.
        """
        path = _topic(topic)
        exact = {"getPreciseBacklog": "true", "subscriptionBacklogSize": "false"}
        answer = await self._http.ask("GET", f"{path}/stats", params=exact)
        if answer.missing:
            whole = await self._http.ask("GET", f"{path}/partitioned-stats", params={**exact, "perPartition": "false"})
            answer = whole if whole.ok else answer
        return _read(topic_stats, answer.granted())

    async def internal_stats(self, topic: str) -> InternalStats:
        """Of a topic or a partition. A partitioned topic has no storage of its own: ask for each partition.

        The count of the ledger that is being written is the one that the broker gives apart (currentLedgerEntries).
        """
        question = f"{_topic(topic)}/internalStats"
        for _ in range(LISTINGS):
            found = _read(internal_stats, (await self._http.ask("GET", question)).granted())
            # 2.9.1 answers, now and then, before it has listed the ledgers, and some of them may be missing.
            if found.entries is None or sum(one.entries or 0 for one in found.ledgers) >= found.entries:
                break
        return found

    async def unload_topic(self, topic: str) -> None:
        (await self._http.ask("PUT", f"{_topic(topic)}/unload")).granted()

    async def terminate_topic(self, topic: str) -> Position | None:
        last = _read(terminated_at, (await self._http.ask("POST", f"{_topic(topic)}/terminate")).granted())
        # 4.0.7 answers 12:-1 when nothing was written since the topic was loaded, however much there was before.
        return last if last is not None else (await self.internal_stats(topic)).last_confirmed

    async def delete_subscription(self, topic: str, subscription: str, *, force: bool = False) -> None:
        """One that does not exist, or whose topic does not, is deleted already."""
        answer = await self._http.ask(
            "DELETE",
            f"{_topic(topic)}/subscription/{quote(subscription, safe='')}",
            params={"force": "true" if force else "false"},
        )
        if not answer.missing:
            answer.granted()

    async def create_partitions(self, topic: str, partitions: int) -> None:
        answer = await self._http.ask("PUT", f"{_topic(topic)}/partitions", content=partitions)
        if answer.status != 409 or await self._partitions(topic) != partitions:
            answer.granted()

    async def grow_partitions(self, topic: str, partitions: int) -> None:
        """Raises ``AdminRefused`` for fewer than there are (422 on 4.0.7), and for a topic without partitions."""
        if await self._partitions(topic) != partitions:
            (await self._http.ask("POST", f"{_topic(topic)}/partitions", content=partitions)).granted()

    async def _partitions(self, topic: str) -> int:
        """0: a topic without partitions (4.0.7 answers 404 where there is no topic at all)."""
        answer = await self._http.ask("GET", f"{_topic(topic)}/partitions")
        if answer.missing:
            return 0
        body = answer.granted().body()
        number = body.get("partitions") if isinstance(body, dict) else None
        if not isinstance(number, int):
            raise answer.nonsense("no number of partitions")
        return number

    async def _until(self, look: Callable[[], Awaitable[object]], wanted: object, complaint: str) -> None:
        """Policies are read back from the metadata store, which a cluster's brokers see a moment later."""
        ends = asyncio.get_running_loop().time() + AGREEMENT_S
        while await look() != wanted:
            if asyncio.get_running_loop().time() > ends:
                raise AdminRefused(complaint)
            await asyncio.sleep(POLL_S)


def _read(reader: Callable[[Any], T], answer: Answer) -> T:
    try:
        return reader(answer.body())
    except UnexpectedShape as error:
        raise answer.nonsense(str(error)) from error


def _namespace(namespace: str) -> str:
    if namespace.count("/") != 1 or not all(namespace.split("/")):
        raise AdminRefused(f"{namespace!r} is no namespace: it is written tenant/name")
    return f"namespaces/{quote(namespace)}"


def _topic(topic: str) -> str:
    """``persistent/tenant/namespace/name`` of a complete name, quoted as part of a path."""
    domain, _, rest = topic.partition("://")
    parts = rest.split("/", 2)
    if domain not in ("persistent", "non-persistent") or len(parts) != 3 or not all(parts):
        raise AdminRefused(f"{topic!r} is no complete topic name: persistent://tenant/namespace/name")
    return f"{domain}/{'/'.join(quote(part, safe='') for part in parts)}"
