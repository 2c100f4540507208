-- The delayed jobs that are due first.
--
-- KEYS  1–14 the queue's, see _queue.lua
-- ARGV  1 how many
-- Returns {id, level and body, milliseconds until due} of each
--
-- Atomic so that each body belongs to a job that is delayed now.
--@include _queue

local found, now = {}, clock()
local rows = redis.call('ZRANGE', DELAYED, 0, tonumber(ARGV[1]) - 1, 'WITHSCORES')
for i = 1, #rows, 2 do
  local body = redis.call('HGET', BODIES, rows[i])
  if body then found[#found + 1] = {rows[i], body, math.max(0, tonumber(rows[i + 1]) - now)} end
end
return found
