-- Replace the body of a dead letter.
--
-- KEYS  1–14 the queue's, see _queue.lua
-- ARGV  1 the job's id   2 the body
-- Returns 1, or 0 where it is not dead
--
-- An entry of a stream cannot be changed, and a new one would lose its place, so the new body is kept beside it.
-- Atomic because the letter may be retried or cleared in between.
--@include _queue

local place = redis.call('HGET', INDEX, ARGV[1])
if not place or string.sub(place, 1, 1) ~= 'x' then return 0 end
redis.call('HSET', BODIES, ARGV[1], 'x' .. ARGV[2])
return 1
