"""Which SEND an answer is of, where several wait under one sequence id."""

import pytest

from harness.history.event import Event
from harness.invariants.unanswered import Sent, Unanswered


def piece(number: int, uuid: str = "u") -> Event:
    extra = {"producer_id": 1, "is_chunk": True}
    return Event(
        index=number, kind="SEND", connection="c", sequence_id=7, chunk_uuid=uuid, chunk_id=number, num_chunks=3,
        payload_digest=f"{uuid}{number}", num_messages=1, extra=extra,
    )  # fmt: skip


def answer(kind: str, entry: int | None = None, error: str | None = None) -> Event:
    at = {} if entry is None else {"ledger_id": 1, "entry_id": entry}
    return Event(index=9, kind=kind, connection="c", sequence_id=7, error=error, extra={"producer_id": 1}, **at)


@pytest.fixture
def sends() -> Unanswered:
    waiting = Unanswered()
    for number in range(3):
        waiting.sent(piece(number))
    return waiting


def contested(sends: Unanswered) -> list[bool]:
    return [sent.contested for sent in sends.all]


def test_an_error_while_several_pieces_wait_does_not_say_which_it_refuses(sends: Unanswered) -> None:
    # As 2.10.5 answers pieces 0 and 1: the refusal of 1 overtakes the receipt of 0.
    sends.answered(answer("SEND_ERROR", error="PersistenceError"))
    found = sends.answered(answer("SEND_RECEIPT", 0))
    assert isinstance(found, Sent)
    assert found.contested
    assert contested(sends) == [True, True, True]


def test_receipts_of_pieces_come_in_their_order(sends: Unanswered) -> None:
    found = [sends.answered(answer("SEND_RECEIPT", entry)) for entry in range(3)]
    assert [sent and sent.frame.chunk_id for sent in found] == [0, 1, 2]
    assert not any(contested(sends))


def test_an_error_is_of_the_one_piece_that_waits(sends: Unanswered) -> None:
    for entry in range(2):
        sends.answered(answer("SEND_RECEIPT", entry))
    found = sends.answered(answer("SEND_ERROR", error="PersistenceError"))
    assert found is sends.all[2]
    assert found.refused
    assert not any(contested(sends))


def test_a_damaged_piece_is_told_by_its_checksum(sends: Unanswered) -> None:
    found = sends.answered(answer("SEND_ERROR", error="ChecksumError"))
    assert found is sends.all[0]
    assert not any(contested(sends))
