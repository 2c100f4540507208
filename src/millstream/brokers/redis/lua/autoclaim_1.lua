-- One step of claiming what has been pending for long.
--
-- KEYS  1 the stream
-- ARGV  1 the group   2 the consumer   3 the least idle time in milliseconds   4 the cursor   5 the count
-- Returns {the next cursor, {id, fields, delivery count} of each entry claimed, ids that were gone}
--
-- Atomic so that the counts belong to this claim.
--@include _consumer
--@include _counts

local key, group, consumer = KEYS[1], ARGV[1], ARGV[2]
let_exist(key, group, consumer)
local reply = redis.call('XAUTOCLAIM', key, group, consumer, ARGV[3], ARGV[4], 'COUNT', ARGV[5])
return {reply[1], with_counts(key, group, reply[2]), reply[3] or {}}
