-- Where a job is.
--
-- KEYS  1–14 the queue's, see _queue.lua
-- ARGV  1 the job's id
-- Returns nil, or {state, level, body, milliseconds until due, owner, delivery count}
--
-- Atomic because the job may move between the looks.
--@include _queue

local job = ARGV[1]
local place = redis.call('HGET', INDEX, job)
if not place then return nil end
local kind, entry = string.sub(place, 1, 1), string.sub(place, 2)
if kind == 'z' then
  local body, due = redis.call('HGET', BODIES, job), redis.call('ZSCORE', DELAYED, job)
  if not body or not due then return nil end
  return {'delayed', string.lower(string.sub(body, 1, 1)), string.sub(body, 2), math.max(0, tonumber(due) - clock()), '', 0}
end
local found = redis.call('XRANGE', kind == 'x' and DEAD or STREAMS[kind], entry, entry)[1]
if not found then
  redis.call('HDEL', INDEX, job) -- somebody removed the entry behind our back
  return nil
end
if kind == 'x' then
  local level = 'd'
  for i = 1, #found[2], 2 do if found[2][i] == 'level' then level = found[2][i + 1] end end
  local edited = redis.call('HGET', BODIES, job)
  return {'dead', level, edited and string.sub(edited, 2) or found[2][2], 0, '', 0}
end
local row = redis.pcall('XPENDING', STREAMS[kind], GROUP, entry, entry, 1)[1]
if type(row) ~= 'table' or row[2] == RELEASED then
  return {'waiting', kind, found[2][2], 0, '', type(row) == 'table' and row[4] or 0}
end
return {'reserved', kind, found[2][2], 0, row[2], row[4]}
