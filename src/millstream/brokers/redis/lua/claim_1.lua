-- Claim given pending entries for a consumer.
--
-- KEYS  1 the stream
-- ARGV  1 the group   2 the consumer   3 the least idle time in milliseconds   4… ids, a thousand at most
-- Returns {id, fields, delivery count} of each entry claimed, in the order given
--
-- Atomic so that the counts belong to this claim. XCLAIM drops pending ids whose entry is gone.
--@include _consumer
--@include _counts

local key, group, consumer = KEYS[1], ARGV[1], ARGV[2]
let_exist(key, group, consumer)
return with_counts(key, group, redis.call('XCLAIM', key, group, consumer, ARGV[3], unpack(ARGV, 4)))
