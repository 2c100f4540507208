-- Say that a worker is alive.
--
-- KEYS  1 what is known of the workers, by id   2 their ids by the millisecond at which they are forgotten
-- ARGV  1 the worker's id   2 what is known of it   3 for how many milliseconds
-- Returns nothing
--
-- Atomic so that both always list the same workers.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZADD', KEYS[2], string.format('%.0f', now + tonumber(ARGV[3])), ARGV[1])
redis.call('HSET', KEYS[1], ARGV[1], string.format('%.0f ', now) .. ARGV[2])
local gone = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', string.format('%.0f', now), 'LIMIT', 0, 100)
if #gone > 0 then
  redis.call('HDEL', KEYS[1], unpack(gone))
  redis.call('ZREM', KEYS[2], unpack(gone))
end
