-- Forget jobs that are waiting or delayed.
--
-- KEYS  1–14 the queue's, see _queue.lua
-- ARGV  for each job its id, and where it is; '' to look that up
-- Returns how many were forgotten
--
-- Atomic because a job that is reserved between the look and the removal must stay.
--@include _queue
--@include _unique

local gone = {}
for i = 1, #ARGV, 2 do
  local job, place = ARGV[i], ARGV[i + 1]
  if place == '' then place = redis.call('HGET', INDEX, job) or '' end
  local kind, entry = string.sub(place, 1, 1), string.sub(place, 2)
  if kind == 'z' then
    if redis.call('ZREM', DELAYED, job) == 1 then
      redis.call('HDEL', BODIES, job)
      gone[#gone + 1] = job
    end
  elseif STREAMS[kind] then
    local row = redis.pcall('XPENDING', STREAMS[kind], GROUP, entry, entry, 1)[1]
    local pending = type(row) == 'table'
    if (not pending or row[2] == RELEASED) and redis.call('XDEL', STREAMS[kind], entry) == 1 then
      if pending then
        redis.call('XACK', STREAMS[kind], GROUP, entry)
        redis.call('HINCRBY', STATE, kind, -1)
      end
      gone[#gone + 1] = job
    end
  end
end
if #gone > 0 then
  redis.call('HDEL', INDEX, unpack(gone))
  let_go(gone)
end
return #gone
