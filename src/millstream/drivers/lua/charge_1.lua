-- Note starts of jobs that a waiting read was given, as far as the rate limit allows them.
--
-- KEYS  1 the queue's recent starts
-- ARGV  1 the limit   2 in how many microseconds   3 how many started
-- Returns how many of them are allowed
--
-- Atomic so that two workers do not both use the last start that is free.
--@include _rate

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local per = tonumber(ARGV[2])
local free = free_starts(KEYS[1], tonumber(ARGV[1]), per, now)
local started = math.min(free, tonumber(ARGV[3]))
if started > 0 then note_starts(KEYS[1], started, per, now) end
return started
