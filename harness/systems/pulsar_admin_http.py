"""One question to a Pulsar admin service: sent, answered, and its refusals in words a person can act on."""

from __future__ import annotations

import asyncio
import html
import json
import re
import ssl
from dataclasses import dataclass
from typing import Any

import httpx

from harness.setup_error import SetupError
from harness.systems.admin import AdminMissing, AdminRefused, AdminUnreachable

TIMEOUT_S = 5.0
"""For a question and its complete answer, redirects included."""

REDIRECTS = 5
"""A broker that does not own a topic names the one that does (307), which may have given it away meanwhile."""

_NOT_NOW = frozenset({502, 503, 504})
"""Somebody answered, but not the service: it starts, stops, or stands behind a proxy that does not reach it."""

_MEND = {
    401: "The service wants to know who asks: give a token that it accepts.",
    403: "The token is known, but its role may not do this: it needs the tenant's admin role, or a superuser's.",
}

_TAG = re.compile(r"<[^>]*>")
_TITLE = re.compile(r"<title>(.*?)</title>", re.IGNORECASE | re.DOTALL)
_LONGEST_REASON = 400


@dataclass(frozen=True, slots=True)
class Answer:
    """A complete answer. ``question`` is its method and path, for messages."""

    question: str
    status: int
    text: str

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300

    @property
    def missing(self) -> bool:
        """What was asked about is not there."""
        return self.status == 404

    def granted(self) -> Answer:
        """Itself when the service agreed; raises ``AdminRefused`` with its reason when not."""
        if not self.ok:
            raise self.refusal()
        return self

    def refusal(self) -> AdminRefused:
        mend = _MEND.get(self.status, "")
        text = f"{self.question} was refused ({self.status}): {self.reason}"
        refused = AdminMissing if self.missing else AdminRefused
        return refused(f"{text}\n  {mend}" if mend else text)

    @property
    def reason(self) -> str:
        """The service's own words: ``reason`` of its JSON, the title of a page, or the plain text."""
        body = self._json()
        if isinstance(body, dict) and body.get("reason"):
            return str(body["reason"])[:_LONGEST_REASON]
        title = _TITLE.search(self.text)
        text = title[1] if title else _TAG.sub(" ", self.text)
        words = " ".join(html.unescape(text).split())
        return words[:_LONGEST_REASON] or "it gave no reason"

    def body(self) -> Any:
        """The decoded JSON. Raises ``AdminRefused`` for anything else: nothing can be concluded from it."""
        body = self._json()
        if body is None:
            raise self.nonsense("no JSON")
        return body

    def nonsense(self, why: str) -> AdminRefused:
        """The error of an answer that says something else than was asked for."""
        shown = " ".join(self.text.split())[:120]
        return AdminRefused(
            f"{self.question} was answered with something else than Pulsar's admin service says ({why}): {shown!r}\n"
            "  Is the admin URL right, and is it a Pulsar broker that answers there?"
        )

    def _json(self) -> Any:
        try:
            return json.loads(self.text)
        except (ValueError, RecursionError):
            return None


class AdminHttp:
    """``base`` is the service's URL, with or without a path. Connections are not kept: a broker that was killed, paused
    or replaced would answer on none of them.

    Raises ``SetupError`` for a URL that cannot be one.
    """

    def __init__(self, base: str, *, token: str | None, tls: ssl.SSLContext | None, timeout_s: float) -> None:
        self.base = _checked(base)
        self._timeout_s = timeout_s
        headers = {"Accept": "application/json"}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        try:
            self._client = httpx.AsyncClient(
                headers=headers,
                # Proxy settings of the user's shell are not about brokers on this machine.
                trust_env=False,
                # Without TLS there is nothing to verify, and loading the system's certificates takes 20 ms and more.
                verify=tls if tls is not None else self.base.startswith("https:"),
                timeout=None,
                limits=httpx.Limits(max_keepalive_connections=0),
            )
        except (UnicodeError, ValueError) as error:
            raise SetupError(f"the admin token cannot be sent: {error}", "A token is one line of ASCII.") from error

    async def ask(self, method: str, path: str, *, params: dict[str, str] | None = None, content: Any = None) -> Answer:
        """``path`` begins after ``/admin/v2/``, quoted; ``content`` is sent as JSON. Raises ``AdminUnreachable``."""
        question = f"{method} {path}"
        try:
            async with asyncio.timeout(self._timeout_s):
                answer = await self._answer(question, method, f"{self.base}/admin/v2/{path}", params, content)
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            # The time limit is an OSError, too, and has no words of its own.
            words = str(error) or f"no answer within {self._timeout_s:g} s"
            raise AdminUnreachable(f"{question}: {words} ({self.base})") from error
        if answer.status in _NOT_NOW:
            raise AdminUnreachable(f"{question}: not now ({answer.status}): {answer.reason}")
        return answer

    async def _answer(
        self, question: str, method: str, url: str, params: dict[str, str] | None, content: Any
    ) -> Answer:
        body = None if content is None else json.dumps(content)
        headers = {} if body is None else {"Content-Type": "application/json"}
        for _ in range(REDIRECTS + 1):
            response = await self._client.request(method, url, params=params, content=body, headers=headers)
            if response.next_request is None:
                return Answer(question, response.status_code, response.text)
            # Parameters are part of the address that a redirect names.
            url, params = self._followed(url, str(response.next_request.url), question), None
        raise AdminUnreachable(f"{question}: sent from one broker to the next {REDIRECTS} times")

    @staticmethod
    def _followed(url: str, target: str, question: str) -> str:
        """Where a redirect leads. A token that was sent encrypted is never sent in the clear."""
        if url.startswith("https:") and not target.startswith("https:"):
            raise AdminUnreachable(f"{question}: the service sends us on to {target}, without TLS")
        return target

    async def aclose(self) -> None:
        await self._client.aclose()


def _checked(base: str) -> str:
    mend = "It looks like http://127.0.0.1:8080 or https://broker.example:8443."
    try:
        url = httpx.URL(base)
    except (httpx.InvalidURL, TypeError) as error:
        raise SetupError(f"{base!r} is no admin URL: {error}", mend) from error
    if url.scheme not in ("http", "https") or not url.host:
        raise SetupError(f"{base!r} is no admin URL", mend)
    return base.rstrip("/").removesuffix("/admin/v2")
