"""Whether an admin service lets us do what every session does, and belongs to the broker it was given with."""

from __future__ import annotations

import contextlib
import secrets
import ssl

from harness.setup_error import SetupError
from harness.systems.access import Access
from harness.systems.admin import AdminError, AdminExists, AdminMissing, AdminRefused, AdminUnreachable
from harness.systems.handshake import HandshakeFailed, find_owner
from harness.systems.pulsar_admin import PulsarAdmin
from harness.systems.pulsar_admin_http import AdminHttp
from harness.systems.system import Address

TENANT = "public"
LOOKUP_TIMEOUT_S = 10.0

NAMES = 3
"""How many names a new namespace may be refused as taken."""

KEPT_SETTINGS = (
    "acknowledgmentAtBatchIndexLevelEnabled",
    "allowAutoTopicCreation",
    "allowAutoTopicCreationType",
    "backlogQuotaDefaultRetentionPolicy",
    "brokerDeduplicationEnabled",
    "brokerDeduplicationEntriesInterval",
    "brokerDeleteInactiveTopicsEnabled",
    "delayedDeliveryEnabled",
    "delayedDeliveryTickTimeMillis",
    "managedLedgerMaxEntriesPerLedger",
    "managedLedgerMinLedgerRolloverTimeMinutes",
    "maxMessageSize",
    "maxUnackedMessagesPerConsumer",
    "systemTopicEnabled",
    "topicLevelPoliciesEnabled",
)
"""Of what a broker tells of its settings, these are stored with a run: among the others are passwords."""


async def reach_admin(address: Address, access: Access) -> tuple[PulsarAdmin, dict[str, str]]:
    """The admin service of ``address``, tried out, and the broker's settings (empty when it does not tell them to us).

    Raises ``SetupError`` when it does not answer, refuses, or is not the service of the broker at ``address``.
    """
    url = address.admin_url
    assert url is not None, "the address has no admin service"
    admin = PulsarAdmin(url, token=access.token, tls=_tls(url, access))
    try:
        await _try_namespace(admin, address, access)
        await _only_one_broker(address, access)
        with contextlib.suppress(AdminRefused):  # superusers only
            told = await admin.configuration()
            return admin, {name: told[name] for name in KEPT_SETTINGS if name in told}
        return admin, {}
    except BaseException as error:
        await admin.aclose()
        if isinstance(error, AdminError):
            raise _told(error, url) from error
        raise


async def _try_namespace(admin: PulsarAdmin, address: Address, access: Access) -> None:
    namespace = await new_namespace(admin)
    try:
        topic = f"persistent://{namespace}/reached"
        await find_owner(address.host, address.port, LOOKUP_TIMEOUT_S, topic, access)
    except HandshakeFailed as error:
        raise SetupError(
            f"a namespace made at {address.admin_url} is of no use at {address.service_url}: {error}",
            "Do both addresses belong to the same cluster?",
        ) from error
    finally:
        await admin.remove_namespace(namespace)


async def new_namespace(admin: PulsarAdmin) -> str:
    """One that was not there: it is removed again, with all that is in it."""
    for _ in range(NAMES):
        namespace = f"{TENANT}/starquake-{secrets.token_hex(5)}"
        with contextlib.suppress(AdminExists):
            await admin.create_namespace(namespace)
            return namespace
    raise AdminExists(f"{NAMES} names drawn at random are all said to exist already, the last {namespace}")


async def _only_one_broker(address: Address, access: Access) -> None:
    """Frames are recorded on the way to one address: a client must not be sent to another broker than that."""
    assert address.admin_url is not None
    http = AdminHttp(
        address.admin_url, token=access.token, tls=_tls(address.admin_url, access), timeout_s=LOOKUP_TIMEOUT_S
    )
    try:
        answer = await http.ask("GET", "brokers")
    finally:
        await http.aclose()
    brokers = answer.body() if answer.ok else []
    if not isinstance(brokers, list) or len(brokers) < 2:
        return
    probe = f"persistent://{TENANT}/default/starquake-reached"
    with contextlib.suppress(HandshakeFailed):  # of one that may not look there, its sessions will tell
        owner = await find_owner(address.host, address.port, LOOKUP_TIMEOUT_S, probe, access)
        if owner.proxy_through_service_url:
            return
    raise SetupError(
        f"the cluster at {address.admin_url} has {len(brokers)} brokers, and a client of {address.service_url} is sent"
        " to whichever has the topic, past the taps",
        "Give the address of a Pulsar proxy in front of them, or of a cluster with one broker.",
    )


def _tls(url: str, access: Access) -> ssl.SSLContext | None:
    return access.context if url.startswith("https:") else None


def _told(error: AdminError, url: str) -> SetupError:
    if isinstance(error, AdminUnreachable):
        return SetupError(
            f"no admin service at {url}: {error}",
            "Check the URL (port 8080, or 8443 with https), or leave it out and do without what needs it.",
        )
    if isinstance(error, AdminMissing):
        return SetupError(
            f"admin refused at {url}: {error}",
            f"Every session makes a namespace in the tenant {TENANT}. A standalone makes that tenant last of all, at"
            " its first start: if it is still starting, try again.",
        )
    return SetupError(
        f"admin refused at {url}: {error}",
        f"Every session makes a namespace in the tenant {TENANT}: give the token of that tenant's admin role or of a"
        " superuser with --client-conf FILE, or leave the admin URL out and do without what needs it.",
    )
