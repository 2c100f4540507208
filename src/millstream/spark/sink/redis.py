"""Staging and publishing on Redis and Valkey: a list for a stage, a hash for a fence, a script per step.

Keys: ``{stream}:stage:…`` (or ``{prefix:queue}:stage:…``), in the slot of where the rows go, so that one
script reaches both also on a Cluster; and ``millstream:sink:<write or query>`` for the fence.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Iterator, Sequence
from importlib.resources import files
from itertools import groupby

import msgspec

from millstream.brokers.redis import RedisStreamBroker
from millstream.brokers.redis.calls import Call
from millstream.brokers.redis.link import Argument, ClusterLink
from millstream.brokers.redis.scripts import Script
from millstream.drivers.base import PushItem
from millstream.drivers.keys import LEVELS, QueueKeys
from millstream.drivers.redis_reserving import tells_id
from millstream.errors import InvalidName, StagedDataLost
from millstream.spark.sink.blocks import END, pack
from millstream.spark.sink.options import CommonOptions, JobWriteOptions
from millstream.spark.sink.staging import Begun, Block, JobTarget, Manifest, Stage, Target

# The sink's own scripts, and those of the driver, which one of them includes.
_FOLDERS = (files(__package__) / "lua", files("millstream.drivers") / "lua")
STAGE, HOLD, BEGIN = (Script(name, *_FOLDERS) for name in ("stage_n", "hold_n", "begin_1"))
FINISH, PUBLISH = Script("finish_1", *_FOLDERS), Script("publish_n", *_FOLDERS)
PUBLISH_JOBS = Script("publish_jobs_16", *_FOLDERS)

KEYS = 500  # of one call that takes many
AHEAD = 100  # blocks whose streams are asked for in one call
HOLD_SLACK_MS = 86_400_000  # what is held outlives the fence that names it
RETRY_FOR = 30.0  # seconds: a restart of the server is survived within a task
_END_NAMES = msgspec.msgpack.encode([])


class RedisTarget(Target):
    """Entries of streams. See `staging.py` for what each method is."""

    def __init__(self, options: CommonOptions) -> None:
        self._broker = RedisStreamBroker(options.url, retry_for=RETRY_FOR)
        self._caller = self._broker._caller
        self._link = self._caller.link
        self._limit = self._broker._adder._max_stream_length
        self._touched: set[str] = set()
        self._stage_ms = round(options.stage_ttl * 1000)
        self._fence_ms = round(options.fence_ttl * 1000)

    def close(self) -> None:
        self._broker.close()

    # -- staging -----------------------------------------------------------------------------------

    def group_of(self, name: str) -> str:
        return str(self._link.slot(name))

    def new_stage(self, name: str) -> str:
        return f"{_tagged(name, isinstance(self._link, ClusterLink))}:stage:{secrets.token_hex(10)}"

    def stage(self, key: str, position: int, blocks: Sequence[Block], *, named: bool, last: bool) -> None:
        values: list[Argument] = [block for block, _, _ in blocks]
        names: list[Argument] = [msgspec.msgpack.encode(streams) for _, _, streams in blocks]
        if last:
            values.append(END)
            names.append(_END_NAMES)
        keys = (key, _names(key)) if named else (key,)
        found = self._caller.script(
            STAGE, keys, position, self._stage_ms, len(values), *values, *(names if named else ())
        )
        if found != position + len(values):
            raise StagedDataLost(f"the stage {key} has {found} blocks in place of {position + len(values)}")

    def hold(self, stages: Sequence[Stage]) -> None:
        span = self._fence_ms + HOLD_SLACK_MS
        for some in self._by_slot(stages):
            keys: list[str] = []
            lengths: list[int] = []
            for stage in some:
                keys += [stage.key, _names(stage.key)] if stage.named else [stage.key]
                lengths += [stage.blocks + 1] * (2 if stage.named else 1)
            bad = self._caller.script(HOLD, tuple(keys), span, *lengths)
            if bad:
                raise _lost(keys[bad - 1], "before it was published; nothing of this write was")

    # -- publishing --------------------------------------------------------------------------------

    def begin(self, fence: str, batch: int, manifest: Manifest | None) -> Begun | None:
        text = b"" if manifest is None else msgspec.json.encode(manifest)
        reply = self._caller.script(BEGIN, (_fence(fence),), batch, text, self._fence_ms)
        if reply[0] == b"none":
            return None
        if reply[0] == b"done":
            return Begun(None)
        return Begun(msgspec.json.decode(reply[1], type=Manifest))

    def publish(self, stage: Stage) -> int:
        rows = self._move(stage, PUBLISH, self._calls)
        if self._touched:
            # Where the URL says max_stream_length: by the broker's own rule, which removes nothing needed.
            for stream in self._touched:
                self._broker.xtrim(stream, max_len=self._limit)
            self._touched.clear()
        return rows

    def _move(self, stage: Stage, script: Script, calls: Callable[[Stage, int], Iterator[Call]]) -> int:
        """Move every block that is left, each call sent while the server works at the one before.

        A call says how many blocks it believes to be left, so that one which comes twice, or after another
        driver's, moves nothing.
        """
        rows = 0
        while (left := self._length(stage)) > 1:
            for now, moved in self._caller.scripts(script, calls(stage, left)):
                left, rows = left - 1, rows + moved
                if now != left:
                    break  # somebody else moves them too, or they are gone: look again
        if left < 1:
            raise _lost(stage.key, "while it was published")
        return rows

    def _calls(self, stage: Stage, left: int) -> Iterator[Call]:
        for start in range(left, 1, -AHEAD):
            stop = max(start - AHEAD, 1)
            names: list[Sequence[str]] = [(stage.group,)] * (start - stop)
            if stage.named:
                # Counted from the end, which stays while blocks are taken from the front.
                found = self._caller.call(stage.key, "LRANGE", _names(stage.key), -start, -stop - 1)
                names = [msgspec.msgpack.decode(streams, type=list[str]) for streams in found]
            second = _names(stage.key) if stage.named else stage.key
            for number, streams in zip(range(start, stop, -1), names, strict=False):
                if self._limit is not None:
                    self._touched.update(streams)
                yield (stage.key, second, *streams), (number,)

    def finish(self, fence: str, manifest: Manifest) -> None:
        self._caller.script(FINISH, (_fence(fence),), manifest.batch, self._fence_ms)
        self.discard(manifest.stages)

    def discard(self, stages: Sequence[Stage]) -> None:
        for some in self._by_slot(stages):
            keys = [key for stage in some for key in (stage.key, _names(stage.key))]
            self._caller.call(keys[0], "UNLINK", *keys)

    # -- parts -------------------------------------------------------------------------------------

    def _length(self, stage: Stage) -> int:
        found: int = self._caller.call(stage.key, "LLEN", stage.key)
        return found

    def _by_slot(self, stages: Sequence[Stage]) -> Iterator[list[Stage]]:
        """Stages that one call may name."""
        ordered = sorted(stages, key=lambda stage: self._link.slot(stage.key))
        for _, same in groupby(ordered, key=lambda stage: self._link.slot(stage.key)):
            listed = list(same)
            for start in range(0, len(listed), KEYS):
                yield listed[start : start + KEYS]


class RedisJobTarget(RedisTarget, JobTarget):
    """Jobs on queues."""

    def __init__(self, options: JobWriteOptions) -> None:
        super().__init__(options)
        self._prefix = options.prefix
        self._noted: set[str] = set()

    def group_of(self, name: str) -> str:
        return name

    def new_stage(self, name: str) -> str:
        return f"{QueueKeys(self._prefix, name).tag}:stage:{secrets.token_hex(10)}"

    def job_block(self, items: Sequence[PushItem]) -> bytes:
        return pack([b"", b"", *_push_arguments(items)])

    def publish(self, stage: Stage) -> int:
        keys = QueueKeys(self._prefix, stage.group)
        if stage.group not in self._noted:
            # The list of queues has a slot of its own. Before the push: no job is ever unlisted.
            listed = f"{{{self._prefix}}}:queues"
            self._caller.call(listed, "SADD", listed, stage.group)
            self._noted.add(stage.group)
        every = (*keys.all, f"{stage.key}:answer", stage.key)
        return self._move(
            stage, PUBLISH_JOBS, lambda _, left: ((every, (number,)) for number in range(left, 1, -1))
        )


def _names(key: str) -> str:
    return f"{key}:names"


def _fence(fence: str) -> str:
    return f"millstream:sink:{fence}"


def _tagged(stream: str, cluster: bool) -> str:
    """A beginning of keys that are in the stream's own slot."""
    start = stream.find("{")
    end = stream.find("}", start + 1)
    if start >= 0 and end > start + 1:
        return stream  # the name has a hash tag of its own
    if "}" in stream and cluster:
        raise InvalidName("stream", stream, "on a cluster the sink needs a name without '}'")
    return f"{{{stream}}}"


def _lost(key: str, when: str) -> StagedDataLost:
    return StagedDataLost(
        f"what was staged under {key} is gone {when}: it expired (raise stageTtl), was evicted (set the "
        "server's maxmemory-policy to noeviction), or the server was restarted without its data (turn AOF on)"
    )


def _push_arguments(items: Sequence[PushItem]) -> list[bytes]:
    """The arguments of push_15.lua from the third on."""
    marks, later = "", ""
    pairs: list[bytes] = []
    delays: list[bytes] = []
    uniques: list[bytes] = []
    for position, item in enumerate(items, 1):
        letter = LEVELS[item.priority]
        marks += letter if tells_id(item.body, item.id) else letter.upper()
        later += "1" if item.delay else "0"
        pairs += (item.id.encode(), item.body)
        if item.delay:
            delays.append(_ms(item.delay))
        if item.unique_key is not None:
            uniques += (b"%d" % position, item.unique_key.encode(), _ms(item.unique_for))
    return [marks.encode(), later.encode(), *pairs, *delays, *uniques]


def _ms(seconds: float) -> bytes:
    """Milliseconds, upwards: nothing comes earlier than it was asked for."""
    return b"%d" % math.ceil(seconds * 1000)
