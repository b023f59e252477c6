"""The admin client against a service that answers what a real broker answered (4.0.7 unless it says otherwise)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pytest

from harness.setup_error import SetupError
from harness.systems import admin_check
from harness.systems.admin import AdminError, AdminExists, AdminMissing, AdminRefused, AdminUnreachable
from harness.systems.pulsar_admin import PulsarAdmin
from harness.wire.message_id import Position

TOPIC = "persistent://public/run/t"
NAMESPACE = "public/run"
GONE = (404, '{"reason":"Topic not found"}')
OK = (204, "")


@dataclass
class Service:
    """Answers by ``METHOD path`` (a list: one after the other, the last for good); remembers what it was asked."""

    answers: dict[str, Any]
    asked: list[str] = field(default_factory=list)
    bodies: dict[str, str] = field(default_factory=dict)
    queries: dict[str, str] = field(default_factory=dict)
    headers: str = ""
    url: str = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            line, _, self.headers = head.partition("\r\n")
            method, target, _ = line.split(" ")
            length = next(
                (int(row[15:]) for row in self.headers.lower().split("\r\n") if row.startswith("content-length:")), 0
            )
            body = (await reader.readexactly(length)).decode()
            path, _, query = target.removeprefix("/admin/v2/").partition("?")
            question = f"{method} {path}"
            self.asked.append(question)
            self.bodies[question], self.queries[question] = body, query
            answer = self.answers.get(question, (404, "<html><title>Error 404 Not Found</title></html>"))
            if isinstance(answer, list):
                answer = answer.pop(0) if len(answer) > 1 else answer[0]
            if isinstance(answer, bytes):
                writer.write(answer)
            elif answer is not None:
                status, text = answer
                extra = f"Location: {text}\r\n" if 300 <= status < 400 else ""
                raw = text.encode()
                writer.write(f"HTTP/1.1 {status} X\r\n{extra}Content-Length: {len(raw)}\r\n\r\n".encode() + raw)
            else:
                await asyncio.sleep(30)
        finally:
            writer.close()


def tell(answers: dict[str, Any], call: Callable[[PulsarAdmin], Awaitable[Any]], **options: Any) -> tuple[Any, Service]:
    """The result of a call, or the error it raised, and what the service heard."""

    async def scenario() -> tuple[Any, Service]:
        service = Service(answers)
        server = await asyncio.start_server(service.serve, "127.0.0.1", 0)
        service.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        admin = PulsarAdmin(service.url, **{"timeout_s": 2.0, **options})
        try:
            return await call(admin), service
        except AdminError as error:
            return error, service
        finally:
            await admin.aclose()
            server.close()

    return asyncio.run(scenario())


def refused(answers: dict[str, Any], call: Callable[[PulsarAdmin], Awaitable[Any]], **options: Any) -> str:
    error, _ = tell(answers, call, **options)
    assert isinstance(error, AdminRefused)
    return str(error)


# ---------------------------------------------------------------------------------------------------- being refused


def test_the_brokers_own_reason_is_told():
    answer = {"PUT persistent/public/run/t/unload": (412, '{"reason":"Not today"}')}
    assert "Not today" in refused(answer, lambda admin: admin.unload_topic(TOPIC))


def test_a_page_is_told_by_its_title():
    answer = {"PUT persistent/public/run/t/unload": (405, "<html><head><title>Error 405 Method Not Allowed</title>")}
    assert "Error 405 Method Not Allowed" in refused(answer, lambda admin: admin.unload_topic(TOPIC))


@pytest.mark.parametrize(("status", "mend"), [(401, "give a token"), (403, "needs the tenant's admin role")])
def test_missing_rights_say_what_to_do(status: int, mend: str):
    answer = {"PUT namespaces/public/run": (status, "HTTP 401 Unauthorized")}
    assert mend in refused(answer, lambda admin: admin.create_namespace(NAMESPACE))


def test_what_does_not_exist_is_told_apart():
    error, _ = tell({"GET persistent/public/run/t/stats": GONE}, lambda admin: admin.topic_stats(TOPIC))
    assert isinstance(error, AdminMissing)


@pytest.mark.parametrize("text", ["", "<html>welcome</html>", "[]", '"x"', '{"subscriptions": 5}', '{"a":' * 5000])
def test_an_answer_of_somebody_else_is_no_traceback(text: str):
    told = refused({"GET persistent/public/run/t/stats": (200, text)}, lambda admin: admin.topic_stats(TOPIC))
    assert "Is the admin URL right" in told


@pytest.mark.parametrize("topic", ["t", "persistent://public/t", "topic://a/b/c", "persistent://a//c", ""])
def test_a_name_that_is_not_complete_is_not_asked_about(topic: str):
    error, service = tell({}, lambda admin: admin.topic_stats(topic))
    assert isinstance(error, AdminRefused)
    assert service.asked == []


# ---------------------------------------------------------------------------------------------------- no answer


def test_nobody_listens():
    async def scenario() -> None:
        with pytest.raises(AdminUnreachable, match=r"127\.0\.0\.1:1"):
            await PulsarAdmin("http://127.0.0.1:1").version()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "answer", [None, b"", b"\x00\x00\x00\x04nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx"]
)
def test_silence_garbage_and_half_an_answer(answer: bytes | None):
    error, _ = tell({"GET brokers/version": answer}, lambda admin: admin.version(), timeout_s=0.3)
    assert isinstance(error, AdminUnreachable)


def test_silence_is_named():
    error, _ = tell({"GET brokers/version": None}, lambda admin: admin.version(), timeout_s=0.2)
    assert "no answer within 0.2 s" in str(error)


def test_a_service_that_is_not_ready_is_not_reached():
    error, _ = tell({"GET brokers/version": (503, "starting")}, lambda admin: admin.version())
    assert isinstance(error, AdminUnreachable)


@pytest.mark.parametrize("url", ["", "127.0.0.1:8080", "pulsar://127.0.0.1:6650", "http://", "http://[::1"])
def test_a_url_that_is_none(url: str):
    with pytest.raises(SetupError, match="no admin URL"):
        PulsarAdmin(url)


# ---------------------------------------------------------------------------------------------------- being asked


def test_the_token_goes_along_and_is_never_shown():
    error, service = tell({"GET brokers/version": (401, "no")}, lambda admin: admin.version(), token="s3cret")
    assert "authorization: bearer s3cret" in service.headers.lower()
    assert "s3cret" not in str(error)


def test_a_token_that_cannot_be_sent():
    with pytest.raises(SetupError, match="token"):
        PulsarAdmin("http://127.0.0.1:1", token="gehört")


def test_a_base_with_a_path_is_the_same():
    async def scenario() -> str:
        service = Service({"GET brokers/version": (200, "4.0.7")})
        server = await asyncio.start_server(service.serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        version = await PulsarAdmin(f"http://127.0.0.1:{port}/admin/v2/").version()
        server.close()
        return version

    assert asyncio.run(scenario()) == "4.0.7"


def test_names_are_quoted():
    answers = {"DELETE persistent/public/run/a%2Fb%20c/subscription/s%2F1": OK}
    _, service = tell(answers, lambda admin: admin.delete_subscription("persistent://public/run/a/b c", "s/1"))
    assert service.asked == list(answers)


def test_a_redirect_is_followed_with_everything():
    moved = "/admin/v2/persistent/public/run/x/unload?authoritative=true"
    answers = {"PUT persistent/public/run/t/unload": (307, moved), "PUT persistent/public/run/x/unload": OK}
    _, service = tell(answers, lambda admin: admin.unload_topic(TOPIC), token="t")
    assert service.asked == list(answers)
    assert service.queries["PUT persistent/public/run/x/unload"] == "authoritative=true"
    assert "authorization: bearer t" in service.headers.lower()


def test_redirects_in_a_circle_end():
    here = "/admin/v2/persistent/public/run/t/unload"
    error, service = tell({"PUT persistent/public/run/t/unload": (307, here)}, lambda admin: admin.unload_topic(TOPIC))
    assert isinstance(error, AdminUnreachable)
    assert len(service.asked) < 10


# ---------------------------------------------------------------------------------------------------- namespaces


def test_a_namespace_that_exists_is_somebody_elses():
    exists = {"PUT namespaces/public/run": (409, '{"reason":"Namespace already exists"}')}
    error, service = tell(exists, lambda admin: admin.create_namespace(NAMESPACE))
    assert isinstance(error, AdminExists)
    assert service.asked == list(exists)


@pytest.mark.parametrize("taken", [1, 2, 99])
def test_the_namespace_that_is_tried_out_is_a_new_one(taken: int, monkeypatch: pytest.MonkeyPatch):
    numbers = count()
    monkeypatch.setattr(admin_check.secrets, "token_hex", lambda size: str(next(numbers)))
    answers = {
        f"PUT namespaces/public/starquake-{number}": (409, "{}") if number < taken else OK for number in range(5)
    }
    result, service = tell(answers, admin_check.new_namespace)
    assert len(service.asked) == min(taken + 1, admin_check.NAMES)
    if taken < admin_check.NAMES:
        assert result == f"public/starquake-{taken}"
    else:
        assert isinstance(result, AdminExists)


def test_deduplication_is_read_back():
    answers = {
        "POST namespaces/public/run/deduplication": OK,
        "GET namespaces/public/run/deduplication": [(200, ""), (200, "false"), (200, "true")],
    }
    result, service = tell(answers, lambda admin: admin.set_deduplication(NAMESPACE, True))
    assert result is None
    assert service.bodies["POST namespaces/public/run/deduplication"] == "true"
    assert service.asked.count("GET namespaces/public/run/deduplication") == 3


def test_a_version_without_that_question_is_asked_for_its_policies():
    answers = {
        "POST namespaces/public/run/deduplication": OK,
        "GET namespaces/public/run/deduplication": (405, ""),
        "GET namespaces/public/run": (200, '{"deduplicationEnabled": false}'),
    }
    assert tell(answers, lambda admin: admin.set_deduplication(NAMESPACE, False))[0] is None


def test_a_quota_is_read_back():
    quota = {"limitSize": 100, "limitTime": -1, "policy": "producer_exception"}
    answers = {
        "POST namespaces/public/run/backlogQuota": OK,
        "GET namespaces/public/run/backlogQuotaMap": (200, json.dumps({"destination_storage": quota})),
    }
    _, service = tell(answers, lambda admin: admin.set_backlog_quota(NAMESPACE, "producer_exception", size=100))
    assert json.loads(service.bodies["POST namespaces/public/run/backlogQuota"]) == quota
    assert service.queries["POST namespaces/public/run/backlogQuota"] == "backlogQuotaType=destination_storage"


def test_a_quota_without_a_limit_is_none():
    assert "needs a limit" in refused({}, lambda admin: admin.set_backlog_quota(NAMESPACE, "producer_exception"))


def asked_after(service: Service, words: Iterable[str]) -> list[str]:
    return [question for question in service.asked if question.split(" ")[0] in words]


def test_a_namespace_is_removed_at_once_where_the_broker_may():
    _, service = tell({"DELETE namespaces/public/run": OK}, lambda admin: admin.remove_namespace(NAMESPACE))
    assert service.asked == ["DELETE namespaces/public/run"]
    assert service.queries["DELETE namespaces/public/run"] == "force=true"


def test_a_namespace_that_is_gone_is_removed_already():
    assert tell({}, lambda admin: admin.remove_namespace(NAMESPACE))[0] is None


def test_otherwise_topic_by_topic_until_nobody_brings_any_back():
    answers = {
        "DELETE namespaces/public/run": [(405, '{"reason":"no force"}'), (409, '{"reason":"not empty"}'), OK],
        "POST namespaces/public/run/autoTopicCreation": OK,
        "GET persistent/public/run/partitioned": (200, '["persistent://public/run/p"]'),
        "GET persistent/public/run": (200, '["persistent://public/run/p-partition-0", "persistent://public/run/t"]'),
        "DELETE persistent/public/run/p/partitions": OK,
        "DELETE persistent/public/run/t": [OK, GONE],
    }
    result, service = tell(answers, lambda admin: admin.remove_namespace(NAMESPACE))
    assert result is None
    assert asked_after(service, ["DELETE"]) == [
        "DELETE namespaces/public/run",
        *2 * [
            "DELETE persistent/public/run/p/partitions",
            "DELETE persistent/public/run/p-partition-0",
            "DELETE persistent/public/run/t",
            "DELETE namespaces/public/run",
        ],
    ]  # fmt: skip


def test_who_may_not_remove_a_namespace_is_told_so_at_once():
    told = refused({"DELETE namespaces/public/run": (403, "no")}, lambda admin: admin.remove_namespace(NAMESPACE))
    assert "needs the tenant's admin role" in told


# ---------------------------------------------------------------------------------------------------- topics


def test_the_backlog_is_asked_for_exactly():
    body = '{"subscriptions": {"s": {"msgBacklog": 2, "type": "Exclusive"}}}'
    stats, service = tell({"GET persistent/public/run/t/stats": (200, body)}, lambda admin: admin.topic_stats(TOPIC))
    assert stats.subscriptions["s"].backlog == 2
    assert "getPreciseBacklog=true" in service.queries["GET persistent/public/run/t/stats"]


def test_a_partitioned_topic_is_the_sum_of_its_partitions():
    answers = {
        "GET persistent/public/run/t/stats": GONE,
        "GET persistent/public/run/t/partitioned-stats": (200, '{"storageSize": 9, "subscriptions": {}}'),
    }
    assert tell(answers, lambda admin: admin.topic_stats(TOPIC))[0].storage_size == 9


def test_a_termination_right_after_an_unload_ends_where_the_ledger_before_does():
    internal = {"lastConfirmedEntry": "9:-1", "ledgers": [{"ledgerId": 4, "entries": 3}, {"ledgerId": 9, "entries": 0}]}
    answers = {
        "POST persistent/public/run/t/terminate": (200, '{"ledgerId":9,"entryId":-1,"partitionIndex":-1}'),
        "GET persistent/public/run/t/internalStats": (200, json.dumps(internal)),
    }
    assert tell(answers, lambda admin: admin.terminate_topic(TOPIC))[0] == Position(4, 2)


def test_a_list_of_ledgers_that_is_not_complete_is_asked_for_again():
    """As 2.9.1 was seen to answer."""
    early = {"numberOfEntries": 6, "currentLedgerEntries": 6, "lastConfirmedEntry": "1:5", "ledgers": []}
    whole = {**early, "ledgers": [{"ledgerId": 1, "entries": 0, "size": 0}]}
    question = "GET persistent/public/run/t/internalStats"
    answers = {question: [(200, json.dumps(early)), (200, json.dumps(whole))]}
    internal, _ = tell(answers, lambda admin: admin.internal_stats(TOPIC))
    assert [(one.ledger, one.entries) for one in internal.ledgers] == [(1, 6)]
    internal, service = tell({question: (200, json.dumps(early))}, lambda admin: admin.internal_stats(TOPIC))
    assert internal.ledgers == ()
    assert len(service.asked) == 3


def test_a_subscription_that_is_gone_is_deleted_already():
    answers = {"DELETE persistent/public/run/t/subscription/s": (404, '{"reason":"Subscription not found"}')}
    assert tell(answers, lambda admin: admin.delete_subscription(TOPIC, "s"))[0] is None


def test_partitions_are_made_once_and_only_grow():
    there = {"GET persistent/public/run/t/partitions": (200, '{"partitions":3}')}
    exists = {"PUT persistent/public/run/t/partitions": (409, '{"reason":"This topic already exists"}'), **there}
    assert tell(exists, lambda admin: admin.create_partitions(TOPIC, 3))[0] is None
    assert "already exists" in refused(exists, lambda admin: admin.create_partitions(TOPIC, 4))
    _, service = tell(there, lambda admin: admin.grow_partitions(TOPIC, 3))
    assert asked_after(service, ["POST"]) == []
    grown = {"POST persistent/public/run/t/partitions": OK, **there}
    _, service = tell(grown, lambda admin: admin.grow_partitions(TOPIC, 5))
    assert service.bodies["POST persistent/public/run/t/partitions"] == "5"
