-- Acknowledge entries, and delete those that no other group needs. For servers with XACKDEL (Redis 8.2).
--
-- KEYS  1 the stream
-- ARGV  1 the group   2… ids, a thousand at the most
-- Returns how many were deleted
--
-- XACKDEL … ACKED follows the same rule as ackdel_1.lua in one command, but answers 1 ("deleted") for a
-- pending id whose entry was gone before. So the length of the stream tells how many it deleted;
-- atomic because nothing may be added between the two looks at it.

local key = KEYS[1]
local before = redis.call('XLEN', key)
redis.call('XACKDEL', key, ARGV[1], 'ACKED', 'IDS', #ARGV - 1, unpack(ARGV, 2))
return before - redis.call('XLEN', key)
