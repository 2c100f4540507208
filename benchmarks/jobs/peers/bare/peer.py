"""The limit: redis-py and nothing around it. No job types, retries, leases, threads or signals.

The loop reads 200 entries, decodes each, and acks and deletes them in one script, which does what any honest
worker's ack must do: make sure that this consumer still owns each entry, in this delivery.
"""

from __future__ import annotations

import os
from typing import Any

import meter
import msgspec
import redis
from command import URL

PACKAGE = "redis"
SETTINGS = {"": "XREADGROUP COUNT 200, decoded by msgspec, a script of 200 fenced XACK + XDEL"}
KINDS = ("sync",)
BULK = "a redis-py pipeline of 1000 XADDs"
SPAWNS: set[str] = set()
STREAM, GROUP, COUNT = "bench:bare", "workers", 200
EMPTY_READS = 100  # of half a second each: a worker whose benchmark is gone ends by itself

client: Any = redis.Redis.from_url(URL, protocol=2)
encode = msgspec.json.encode

# KEYS: stream. ARGV: group, consumer, then an id and its delivery count for each entry.
# Returns how many were ours.
ACK = """
local group, consumer, ours = ARGV[1], ARGV[2], {}
local held = redis.call('XPENDING', KEYS[1], group, ARGV[3], ARGV[#ARGV - 1], (#ARGV - 2) / 2, consumer)
local counts = {}
for _, entry in ipairs(held) do counts[entry[1]] = entry[4] end
for place = 3, #ARGV, 2 do
    if counts[ARGV[place]] == tonumber(ARGV[place + 1]) then ours[#ours + 1] = ARGV[place] end
end
if #ours > 0 then
    redis.call('XACK', KEYS[1], group, unpack(ours))
    redis.call('XDEL', KEYS[1], unpack(ours))
end
return #ours
"""


class Payload(msgspec.Struct):
    """What is decoded."""

    number: int
    text: str


def push(number: int) -> None:
    client.xadd(STREAM, {"data": encode({"number": number, "text": meter.TEXT})})


def push_many(numbers: range) -> None:
    pipe = client.pipeline(transaction=False)
    for number in numbers:
        pipe.xadd(STREAM, {"data": encode({"number": number, "text": meter.TEXT})})
    pipe.execute()


def work(variant: str, processes: int) -> None:
    consumer = f"c{os.getpid()}"
    decode, script, read = (
        msgspec.json.Decoder(Payload).decode,
        client.register_script(ACK),
        client.xreadgroup,
    )
    try:
        client.xgroup_create(STREAM, GROUP, "0", mkstream=True)
    except redis.ResponseError as error:
        if "BUSYGROUP" not in str(error):
            raise
    started, first, idle, warm = meter.sheet().started, meter.FIRST, 0, False
    while idle < EMPTY_READS:
        reply = read(GROUP, consumer, {STREAM: ">"}, count=COUNT, block=500)
        if not reply:
            idle += 1
            continue
        entries, idle = reply[0][1], 0
        jobs = [decode(fields[b"data"]) for _, fields in entries]
        if not warm:
            meter.ran(jobs[0].number)  # waits at the gate
            warm = True
        moment = meter.now()
        for job in jobs:
            started[job.number - first] = moment
        arguments: list[Any] = [GROUP, consumer]
        for entry_id, _ in entries:
            arguments += (entry_id, 1)
        if script(keys=[STREAM], args=arguments) != len(jobs):
            raise SystemExit("an entry was not ours any more, which cannot be here")
