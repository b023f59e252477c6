"""Pieces back into messages (clauses CHUNK-06, CHUNK-07, CHUNK-09, CHUNK-EXP-01 to CHUNK-EXP-05)."""

from __future__ import annotations

from dataclasses import dataclass, field

from harness.wire.chunk import ChunkLabel
from harness.wire.message_id import Position


@dataclass(frozen=True, slots=True)
class Assembled:
    """A complete message, still compressed. ``entries``: every piece, those that were superseded too."""

    payload: bytes
    first: Position
    entries: tuple[Position, ...]


@dataclass(frozen=True, slots=True)
class Evicted:
    """The entries of a message that had to make room."""

    entries: tuple[Position, ...]


@dataclass(slots=True)
class _Context:
    num_chunks: int
    total_size: int
    opened_at: int
    payload: bytearray = field(default_factory=bytearray)
    pieces: list[Position] = field(default_factory=list)
    superseded: list[Position] = field(default_factory=list)

    @property
    def entries(self) -> list[Position]:
        return [*self.superseded, *self.pieces]


class ChunkAssembler:
    """One context a uuid; pieces come in ascending order or the context ends.

    ``max_contexts``: incomplete messages kept at once, 0 for no limit. ``expire``: nanoseconds an incomplete message
    may last, 0 for ever. Pieces that cannot be placed, and those of a broken context, take no context but expire too.
    """

    def __init__(self, max_contexts: int, expire: int) -> None:
        self.max_contexts = max_contexts
        self.expire = expire
        self._contexts: dict[str, _Context] = {}
        self._orphans: dict[Position, int] = {}

    def accept(self, label: ChunkLabel, position: Position, data: bytes, now: int) -> Assembled | None:
        """Place one piece; the message when it is complete. Call ``evict`` afterwards."""
        context = self._contexts.get(label.uuid)
        if not self._is_possible(label):
            self._orphan(position, now)
            return None
        if label.chunk_id == 0:
            context = self._open(label, position, now, context)
        elif context is None:
            self._orphan(position, now)
            return None
        elif label.chunk_id < len(context.pieces):
            self._repeated(context, position)
            return None
        elif not self._continues(context, label):
            self._break(label.uuid, context)
            self._orphan(position, now)
            return None
        context.payload += data
        context.pieces.append(position)
        self._orphans.pop(position, None)
        if len(context.payload) > context.total_size:
            self._break(label.uuid, context)
            return None
        if len(context.pieces) < context.num_chunks:
            return None
        return self._complete(label.uuid, context)

    def evict(self) -> list[Evicted]:
        """Oldest contexts above the limit, removed (CHUNK-EXP-04)."""
        evicted: list[Evicted] = []
        while self.max_contexts and len(self._contexts) > self.max_contexts:
            uuid = self._oldest()
            evicted.append(Evicted(tuple(self._contexts.pop(uuid).entries)))
        return evicted

    def deadline(self) -> int | None:
        """When the next expiry is due."""
        if not self.expire:
            return None
        opened = [context.opened_at for context in self._contexts.values()]
        oldest = min([*opened, *self._orphans.values()], default=None)
        return None if oldest is None else oldest + self.expire + 1

    def take_expired(self, now: int) -> list[Position]:
        """Entries of what has been incomplete for longer than ``expire``; they are to be acknowledged (EXP-01)."""
        if not self.expire:
            return []
        expired: list[Position] = []
        for uuid, context in list(self._contexts.items()):
            if self.is_expired(context.opened_at, now):
                expired += context.entries
                del self._contexts[uuid]
        for position, since in list(self._orphans.items()):
            if self.is_expired(since, now):
                expired.append(position)
                del self._orphans[position]
        return expired

    def is_expired(self, since: int, now: int) -> bool:
        """The clock of a message starts with its first piece and is not set back by later ones."""
        return now > since + self.expire

    def clear(self) -> None:
        """Forget everything: a new connection, a rewind or a seek brings all pieces again."""
        self._contexts.clear()
        self._orphans.clear()

    def _is_possible(self, label: ChunkLabel) -> bool:
        return 0 <= label.chunk_id < label.num_chunks

    def _open(self, label: ChunkLabel, position: Position, now: int, former: _Context | None) -> _Context:
        """A first piece always starts again; what it supersedes is named in the final acknowledgement.

        Not acknowledged at once: these may be the very entries that come again.
        """
        context = _Context(label.num_chunks, label.total_size, now)
        if former is not None:
            context.superseded = [entry for entry in former.entries if entry != position]
            del self._contexts[label.uuid]
        self._contexts[label.uuid] = context
        return context

    def _repeated(self, context: _Context, position: Position) -> None:
        """A piece that is already there (CHUNK-07): ignored, but its entry must not stay behind."""
        if position not in context.pieces and position not in context.superseded:
            context.superseded.append(position)

    def _continues(self, context: _Context, label: ChunkLabel) -> bool:
        return label.chunk_id == len(context.pieces) and label.num_chunks == context.num_chunks

    def _break(self, uuid: str, context: _Context) -> None:
        """The message can never be completed from here. It no longer counts (EXP-05), but its pieces still expire."""
        del self._contexts[uuid]
        for position in context.entries:
            self._orphan(position, context.opened_at)

    def _orphan(self, position: Position, since: int) -> None:
        self._orphans.setdefault(position, since)

    def _complete(self, uuid: str, context: _Context) -> Assembled | None:
        if len(context.payload) != context.total_size:
            self._break(uuid, context)
            return None
        del self._contexts[uuid]
        entries = tuple(dict.fromkeys(context.entries))
        for position in entries:
            self._orphans.pop(position, None)
        return Assembled(bytes(context.payload), context.pieces[0], entries)

    def _oldest(self) -> str:
        return min(self._contexts, key=lambda uuid: self._contexts[uuid].opened_at)
