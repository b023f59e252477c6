"""Is each SEND well made? Rules that one frame, with what the application sent, decides."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from harness.history.event import Event
from harness.invariants.core import Anomaly, Invariant, Key
from harness.invariants.producer_fold import ProducerState, producer_key
from harness.invariants.sends import SendBook
from harness.invariants.sequence import announced, is_batch, is_chunk, members


class ShapeState(ProducerState):
    """The application's sends, the batch limits it asked for, and the sizes of pieces on their way."""

    __slots__ = ("book", "limits", "pieces")

    def __init__(self, key: Key) -> None:
        super().__init__(key)
        self.book = SendBook()
        self.limits: dict[str, int] = {}
        self.pieces: dict[str, dict[int, int]] = defaultdict(dict)


class FrameShape(Invariant[ShapeState]):
    """SEND frames as the client built them, read next to the client."""

    name = "frame-shape"
    family = "receipts"
    clauses = (
        "SEND-01", "BATCH-01", "BATCH-02", "BATCH-05", "BATCH-06", "COMP-01", "COMP-02", "META-02", "META-04",
        "META-05",
    )  # fmt: skip

    def key(self, event: Event) -> Key | None:
        wanted = (event.layer == "api" and event.kind in ("send", "producer")) or (
            event.layer == "tap.client" and event.kind == "SEND"
        )
        return producer_key(event) if wanted else None

    def start(self, key: Key) -> ShapeState:
        return ShapeState(key)

    def step(self, state: ShapeState, event: Event) -> Iterable[Anomaly]:
        if event.kind == "send":
            state.book.take(event)
            return ()
        if event.kind == "producer":
            options = event.extra.get("options") or {}
            if event.phase == "invoke":
                state.limits = options.get("batching") or {}
            return ()
        return list(self._frame(state, event))

    def finish(self, state: ShapeState) -> Iterable[Anomaly]:
        return ()

    def _frame(self, state: ShapeState, event: Event) -> Iterator[Anomaly]:
        metadata = event.extra.get("metadata")
        yield from self._check(
            state, "SEND-01", "incomplete-send", event,
            event.sequence_id is not None and event.extra.get("producer_id") is not None
            and (event.num_messages is None or event.num_messages >= 1),
            "a SEND lacks its producer id, its sequence id or a positive count",
        )  # fmt: skip
        if "checksum_ok" in event.extra:
            yield from self._check(
                state, "META-02", "no-valid-checksum", event, event.extra["checksum_ok"] is True,
                "a SEND left its client without a valid checksum",
            )  # fmt: skip
        if metadata is None:
            return
        if "producer_name" in metadata or "publish_time" in metadata:
            complete = metadata.get("producer_name") == state.key[1] and metadata.get("publish_time") is not None
            yield from self._check(
                state, "META-04", "mandatory-metadata-missing", event, complete,
                "producer name or publish time is missing or not that of this producer",
            )  # fmt: skip
        if is_chunk(event) or metadata.get("deliver_at_time") is not None:
            yield from self._check(
                state, "BATCH-05", "batched-what-travels-alone", event, not is_batch(event),
                "a piece or a delayed message was put into a batch",
            )  # fmt: skip
        if is_chunk(event):
            yield from self._pieces(state, event, metadata.get("total_chunk_msg_size"))
        elif is_batch(event):
            yield from self._batch(state, event, metadata)
        if metadata.get("compression") not in (None, "none", "NONE", 0):
            yield from self._compressed(state, event, metadata)

    def _pieces(self, state: ShapeState, event: Event, total: int | None) -> Iterator[Anomaly]:
        if event.chunk_uuid is None or event.chunk_id is None or event.payload_size is None or total is None:
            return
        sizes = state.pieces[event.chunk_uuid]
        sizes[event.chunk_id] = event.payload_size
        if event.chunk_id == (event.num_chunks or 0) - 1 and len(sizes) == event.num_chunks:
            del state.pieces[event.chunk_uuid]
            yield from self._check(
                state, "COMP-01", "total-size-not-that-of-the-pieces", event, sum(sizes.values()) == total,
                f"the pieces hold {sum(sizes.values())} bytes, total_chunk_msg_size says {total}",
            )  # fmt: skip

    def _batch(self, state: ShapeState, event: Event, metadata: dict[str, object]) -> Iterator[Anomaly]:
        listed = event.extra.get("messages")
        if listed is None:
            if event.extra.get("payload_error"):
                yield from self._check(
                    state, "BATCH-02", "unreadable-batch", event, False, "the batch cannot be taken apart"
                )
            return
        count = len(listed)
        counts = {count, event.num_messages, metadata.get("num_messages_in_batch", count)}
        ids = [member.sequence_id for member in members(event) if member.sequence_id is not None]
        wire = announced(event)
        described = counts == {count} and (wire is None or not ids or (wire[0] == ids[0] == min(ids)))
        if event.highest_sequence_id is not None and ids:
            described = described and event.highest_sequence_id == max(ids)
        yield from self._check(
            state, "BATCH-02", "batch-describes-itself-wrongly", event, described,
            f"{count} members with ids {ids[:1]}..{ids[-1:]}, announced as {event.num_messages} with {wire}",
        )  # fmt: skip
        if len(set(ids)) > 1:
            yield from self._check(
                state, "BATCH-06", "highest-id-not-announced", event, event.highest_sequence_id is not None,
                f"a batch of ids {min(ids)}..{max(ids)} announces only {event.sequence_id}",
            )  # fmt: skip
        limit, size_limit = state.limits.get("max_messages"), state.limits.get("max_bytes")
        if limit is None and size_limit is None:
            return
        size = sum(item.get("size") or 0 for item in listed)
        fits = (not limit or count <= limit) and (not size_limit or size <= size_limit or count == 1)
        yield from self._check(
            state, "BATCH-01", "batch-over-its-limit", event, fits,
            f"a batch of {count} messages and {size} bytes; limits {limit} and {size_limit}",
        )  # fmt: skip

    def _compressed(self, state: ShapeState, event: Event, metadata: dict[str, object]) -> Iterator[Anomaly]:
        clause = "COMP-02" if is_batch(event) else "META-05"
        declared = metadata.get("uncompressed_size") is not None and not event.extra.get("payload_error")
        yield from self._check(
            state, clause, "compression-not-reversible", event, declared,
            "the uncompressed size is missing or the payload does not decompress to it",
        )  # fmt: skip
        if not declared or is_chunk(event) or not state.book.sends:
            return
        digests = [member.digest for member in members(event) if member.digest is not None]
        strangers = [digest for digest in digests if not state.book.of(digest)]
        yield from self._check(
            state, clause, "compression-changed-the-payload", event, not strangers,
            f"decompressed payloads {strangers} were never given to the client",
        )  # fmt: skip

    def _check(
        self, state: ShapeState, clause: str, name: str, event: Event, holds: bool, message: str
    ) -> Iterator[Anomaly]:
        if holds:
            state.judged[clause] += 1
        else:
            yield state.anomaly(clause, name, message, event.index, severity="conformance")
