"""What the tap tells the driver of consumers: who is subscribed, and whose dead letter is still under way."""

from __future__ import annotations

from harness.worlds.attachments import Attachments
from tests.consumer_history import CONSUMER, ConsumerHistory


def subscribed() -> ConsumerHistory:
    history = ConsumerHistory()
    history.consumer(kind="shared")
    extra = {"request": "SUBSCRIBE"}
    history.add(layer="tap.client", kind="SUCCESS", connection="client-1", consumer=CONSUMER, extra=extra)
    return history


def attachments_after(history: ConsumerHistory) -> Attachments:
    seen = Attachments()
    for event in history.events:
        seen.observe(event)
    return seen


def test_an_entry_at_its_limit_is_under_way_until_it_is_acked() -> None:
    history = subscribed()
    history.message(1, 0, count=1)
    assert not attachments_after(history).exhausted(CONSUMER, 2)
    history.message(1, 0, count=2)
    assert attachments_after(history).exhausted(CONSUMER, 2)
    history.ack((1, 0))
    assert not attachments_after(history).exhausted(CONSUMER, 2)
    assert attachments_after(history).attached(CONSUMER)


def test_a_lost_connection_takes_everything_along() -> None:
    history = subscribed()
    history.message(1, 0, count=2)
    history.closed()
    seen = attachments_after(history)
    assert not seen.exhausted(CONSUMER, 2)
    assert not seen.attached(CONSUMER)


def test_a_subscription_that_was_lost_and_found_is_another_one() -> None:
    history = subscribed()
    first = attachments_after(history).attachment(CONSUMER)
    history.closed()
    assert attachments_after(history).attachment(CONSUMER) is None
    extra = {"request": "SUBSCRIBE"}
    history.add(layer="tap.client", kind="SUCCESS", connection="client-2", consumer=CONSUMER, extra=extra)
    assert attachments_after(history).attachment(CONSUMER) not in (None, first)
