-- Make delayed jobs waiting whose time has come.
--
-- KEYS  1–14 the queue's, see _queue.lua
-- ARGV  1 how many at the most, up to a thousand
-- Returns how many
--
-- Atomic so that of any number of schedulers one promotes each job, and that it is never lost: a script is not
-- rolled back, so a job is added before it is taken off.
--@include _queue
--@include _unique

local now = clock()
forget_expired(now)
local ids = redis.call('ZRANGEBYSCORE', DELAYED, '-inf', digits(now), 'LIMIT', 0, tonumber(ARGV[1]))
if #ids == 0 then return 0 end
local bodies = redis.call('HMGET', BODIES, unpack(ids))
local indexed, promoted = {}, 0
for i, id in ipairs(ids) do
  local body = bodies[i]
  if body then
    indexed[#indexed + 1] = id
    indexed[#indexed + 1] = add(string.sub(body, 1, 1), id, string.sub(body, 2))
    promoted = promoted + 1
  end
end
if #indexed > 0 then redis.call('HSET', INDEX, unpack(indexed)) end
redis.call('ZREM', DELAYED, unpack(ids))
redis.call('HDEL', BODIES, unpack(ids))
return promoted
