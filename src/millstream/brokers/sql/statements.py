"""Every statement of the broker in the words that all databases share, built once and compiled once.

`postgres.py` has what PostgreSQL can do in a single round trip instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    BigInteger,
    BindParameter,
    ColumnElement,
    Insert,
    LargeBinary,
    Table,
    bindparam,
    delete,
    func,
    insert,
    select,
    text,
    update,
)
from sqlalchemy.dialects import mysql, postgresql, sqlite

from millstream.sql.clock import now_ms
from millstream.sql.schema import Tables


class Statements:
    """The statements for one set of tables on one kind of database."""

    def __init__(self, tables: Tables, backend: str) -> None:  # noqa: PLR0915 - a list, not a procedure
        self._backend = backend
        s, e, g = tables.streams, tables.entries, tables.groups
        c, p, k = tables.consumers, tables.pending, tables.keys
        name = bindparam("stream", type_=s.c.name.type)
        stream_id = select(s.c.id).where(s.c.name == name).scalar_subquery()
        group_name = bindparam("group", type_=g.c.name.type)
        consumer_name = bindparam("consumer", type_=c.c.name.type)
        group_id = select(g.c.id).where(g.c.stream_id == stream_id, g.c.name == group_name).scalar_subquery()
        sid, gid, cid, now = (bindparam(word, type_=BigInteger()) for word in ("sid", "gid", "cid", "now"))
        low, high = (bindparam(word, type_=LargeBinary()) for word in ("low", "high"))
        limit: BindParameter[Any] = bindparam("limit")

        # -- streams -------------------------------------------------------------------------------
        whole_stream = (s.c.id, s.c.last_ms, s.c.last_seq, s.c.length, s.c.watched_until, now_ms())
        self.stream = select(*whole_stream).where(s.c.name == name)
        self.lock_stream = self.stream.with_for_update()
        self.make_stream = self._insert_if_new(s, "name").values(name=name)
        self.grow_stream = (
            update(s)
            .where(s.c.id == sid)
            .values(last_ms=bindparam("ms"), last_seq=bindparam("seq"), length=s.c.length + bindparam("more"))
        )
        self.shrink_stream = update(s).where(s.c.id == sid).values(length=s.c.length - bindparam("less"))
        self.bump_epoch = update(s).where(s.c.id == sid).values(epoch=s.c.epoch + 1)
        self.drop_stream = delete(s).where(s.c.id == sid)

        # -- entries -------------------------------------------------------------------------------
        # In the driver's own words, with tuples: for a thousand rows SQLAlchemy takes longer than the
        # database.
        mark = "?" if backend == "sqlite" else "%s"
        self.add_entries = (
            f"INSERT INTO {e.name} (stream_id, id, data, type, headers)"
            f" VALUES ({mark}, {mark}, {mark}, {mark}, {mark})"
        )
        whole_entry = (e.c.id, e.c.data, e.c.type, e.c.headers)
        in_range = (e.c.stream_id == stream_id, e.c.id >= low, e.c.id <= high)
        # Ordered by the whole index, so that no database thinks of sorting.
        self.range = select(*whole_entry).where(*in_range).order_by(e.c.stream_id, e.c.id).limit(limit)
        self.reversed = (
            select(*whole_entry).where(*in_range).order_by(e.c.stream_id.desc(), e.c.id.desc()).limit(limit)
        )
        self.after = (
            select(*whole_entry)
            .where(e.c.stream_id == sid, e.c.id > low)
            .order_by(e.c.stream_id, e.c.id)
            .limit(limit)
        )
        self.nth_entry = (
            select(e.c.id)
            .where(e.c.stream_id == sid)
            .order_by(e.c.stream_id, e.c.id)
            .limit(1)
            .offset(bindparam("position"))
        )
        self.nth_entry_below = (
            select(e.c.id)
            .where(e.c.stream_id == sid, e.c.id < high)
            .order_by(e.c.stream_id, e.c.id)
            .limit(1)
            .offset(bindparam("position"))
        )
        self.drop_upto = delete(e).where(e.c.stream_id == sid, e.c.id <= high)
        self.drop_entries = delete(e).where(e.c.stream_id == sid, self._among(e.c.id))
        self.some_entries = select(*whole_entry).where(e.c.stream_id == sid, self._among(e.c.id))
        self.drop_all_entries = delete(e).where(e.c.stream_id == sid)
        self.count_after = select(func.count()).select_from(e).where(e.c.stream_id == sid, e.c.id > low)

        # -- groups --------------------------------------------------------------------------------
        self.make_group = self._insert_if_new(g, "stream_id", "name").values(
            stream_id=sid, name=group_name, last_id=low
        )
        # What a reader needs to know before it takes a lock.
        self.look = (
            select(
                s.c.id,
                s.c.last_ms,
                s.c.last_seq,
                s.c.length,
                g.c.id,
                g.c.last_id,
                c.c.id,
                c.c.seen_at,
                now_ms(),
            )
            .select_from(
                s.outerjoin(g, (g.c.stream_id == s.c.id) & (g.c.name == group_name)).outerjoin(
                    c, (c.c.group_id == g.c.id) & (c.c.name == consumer_name)
                )
            )
            .where(s.c.name == name)
        )
        self.lock_group = (
            select(g.c.id, g.c.stream_id, g.c.last_id, now_ms())
            .where(g.c.stream_id == stream_id, g.c.name == group_name)
            .with_for_update()
        )
        self.group = select(g.c.id, g.c.stream_id, now_ms()).where(
            g.c.stream_id == stream_id, g.c.name == group_name
        )
        self.move_group = update(g).where(g.c.id == gid).values(last_id=high)
        self.groups = select(g.c.id, g.c.name, g.c.last_id).where(g.c.stream_id == sid)
        first_pending = (
            select(p.c.id)
            .where(p.c.group_id == g.c.id)
            .order_by(p.c.group_id, p.c.id)
            .limit(1)
            .correlate(g)
            .scalar_subquery()
        )
        self.needs = select(g.c.last_id, first_pending).where(g.c.stream_id == sid)
        self.drop_group = delete(g).where(g.c.id == gid)

        # -- consumers -----------------------------------------------------------------------------
        self.consumer = select(c.c.id).where(c.c.group_id == gid, c.c.name == consumer_name)
        self.make_consumer = self._insert_if_new(c, "group_id", "name").values(
            group_id=gid, name=consumer_name, seen_at=now
        )
        self.see_consumer = (
            update(c).where(c.c.id == cid, c.c.group_id == gid, c.c.name == consumer_name).values(seen_at=now)
        )
        self.drop_consumer = delete(c).where(c.c.id == cid)
        self.drop_consumers = delete(c).where(c.c.group_id == gid)
        self.consumers = (
            select(c.c.name, c.c.seen_at, func.count(p.c.id))
            .select_from(c.outerjoin(p, p.c.consumer_id == c.c.id))
            .where(c.c.group_id == gid)
            .group_by(c.c.id, c.c.name, c.c.seen_at)
        )

        # -- pending entries -----------------------------------------------------------------------
        self.deliver = (
            f"INSERT INTO {p.name} (group_id, id, consumer_id, delivered_at, deliveries)"
            # Marks only: then PyMySQL makes one statement of all rows.
            f" VALUES ({mark}, {mark}, {mark}, {mark}, {mark})"
        )
        self.redeliver = (
            update(p)
            .where(p.c.group_id == gid, self._among(p.c.id))
            .values(consumer_id=cid, delivered_at=now, deliveries=p.c.deliveries + 1)
        )
        self.delivered = select(func.count()).where(
            p.c.group_id == gid, p.c.consumer_id == cid, p.c.delivered_at == now, self._among(p.c.id)
        )
        self.acknowledge = delete(p).where(p.c.group_id == group_id, self._among(p.c.id))
        self.settle = delete(p).where(p.c.group_id == gid, self._among(p.c.id))
        self.some_pending = (
            select(p.c.id, p.c.delivered_at, p.c.deliveries)
            .where(p.c.group_id == gid, self._among(p.c.id))
            .order_by(p.c.group_id, p.c.id)  # locked in one order, so that two claims cannot block each other
            .with_for_update()
        )
        self.page_of_pending = (
            select(p.c.id, p.c.delivered_at, p.c.deliveries)
            .where(p.c.group_id == gid, p.c.id >= low)
            .order_by(p.c.group_id, p.c.id)
            .limit(limit)
            .with_for_update()
        )
        self.pending_in = select(p.c.id).where(
            p.c.group_id.in_(bindparam("groups", expanding=True)), self._among(p.c.id)
        )
        listed = (
            select(p.c.id, c.c.name, p.c.delivered_at, p.c.deliveries)
            .select_from(p.join(c, c.c.id == p.c.consumer_id))
            .where(p.c.delivered_at <= bindparam("before"), p.c.id >= low, p.c.id <= high)
            .limit(limit)
        )
        self.list_pending = listed.where(p.c.group_id == gid).order_by(p.c.group_id, p.c.id)
        self.list_pending_of = listed.where(p.c.consumer_id == cid).order_by(p.c.consumer_id, p.c.id)
        # Not joined with the entries: a planner may then walk the stream from its beginning.
        self.own_pending = (
            select(p.c.id, p.c.deliveries)
            .where(p.c.consumer_id == cid, p.c.id > low)
            .order_by(p.c.consumer_id, p.c.id)
            .limit(limit)
        )
        self.drop_pending = delete(p).where(p.c.group_id == gid)
        self.count_pending_of = select(func.count()).where(p.c.consumer_id == cid)
        self.drop_pending_of = delete(p).where(p.c.consumer_id == cid)

        # -- keys of idempotent additions ----------------------------------------------------------
        key = bindparam("hash", type_=LargeBinary())
        self.known_key = select(k.c.id, k.c.expires_at, now_ms()).where(k.c.hash == key)
        self.drop_key = delete(k).where(k.c.hash == key)
        self.add_key = insert(k).values(
            hash=key, id=bindparam("entry", type_=LargeBinary()), expires_at=bindparam("expires_at")
        )
        # Compared with a value, not with the clock, which is another one for each row and so finds no index.
        self.old_keys = select(k.c.hash).where(k.c.expires_at <= now).order_by(k.c.expires_at).limit(1000)
        self.drop_keys = delete(k).where(self._among(k.c.hash, "hashes", 32))

    def ids(self, ids: Sequence[bytes]) -> Any:
        """The value of a parameter that is a list of ids, or of hashes."""
        return b"".join(ids) if self._backend == "postgresql" else list(ids)

    def _among(self, column: ColumnElement[bytes], name: str = "ids", width: int = 16) -> ColumnElement[bool]:
        """``column`` is one of the values of a list.

        PostgreSQL gets them in one piece and cuts it: psycopg takes longer to spell an array than the
        server to search.
        """
        if self._backend == "postgresql":
            places = f"generate_series(1, length(:{name}), {width}) AS place"
            pieces = f"SELECT substr(:{name}, place, {width}) FROM {places}"
            return column == func.any(
                func.array(text(pieces).bindparams(bindparam(name, type_=LargeBinary())))
            )
        return column.in_(bindparam(name, expanding=True, type_=LargeBinary()))

    def _insert_if_new(self, table: Table, *unique: str) -> Insert:
        if self._backend == "postgresql":
            return postgresql.insert(table).on_conflict_do_nothing(index_elements=unique)
        if self._backend == "sqlite":
            return sqlite.insert(table).on_conflict_do_nothing(index_elements=unique)
        # Not IGNORE, which would hide other mistakes as well.
        first = table.c[unique[0]]
        return mysql.insert(table).on_duplicate_key_update({first.name: first})
