-- How much there is in each state.
--
-- KEYS  1–14 the queue's, see _queue.lua
-- Returns {waiting by level (4), reserved, delayed, dead, age of the oldest waiting one in milliseconds or -1, paused}
--
-- Atomic so that the numbers fit together. Settled entries are deleted, so what a stream holds is
-- waiting or pending.
--@include _queue
--@include _position

local waiting, reserved, oldest = {}, 0, nil
local state = redis.call('HMGET', STATE, 'paused', 'c', 'h', 'd', 'l')
for i, level in ipairs(LEVELS) do
  local key = STREAMS[level]
  local length = redis.call('XLEN', key)
  local summary = redis.pcall('XPENDING', key, GROUP)
  local pending = summary['err'] and 0 or summary[1]
  local released = tonumber(state[i + 1] or 0)
  if pending == 0 then released = 0 end
  waiting[i] = math.max(0, length - pending + released)
  reserved = reserved + pending - released
  if waiting[i] > 0 then
    local head = redis.call('XRANGE', key, '(' .. (position(level) or '0-0'), '+', 'COUNT', 1)[1]
    local ids = {head and head[1]}
    if released > 0 then
      local row = redis.call('XPENDING', key, GROUP, '-', '+', 1, RELEASED)[1]
      ids[#ids + 1] = row and row[1]
    end
    for _, id in pairs(ids) do
      local ms = tonumber(string.match(id, '^%d+'))
      if not oldest or ms < oldest then oldest = ms end
    end
  end
end
return {
  waiting[1], waiting[2], waiting[3], waiting[4], reserved, redis.call('ZCARD', DELAYED), redis.call('XLEN', DEAD),
  oldest and math.max(0, clock() - oldest) or -1, state[1] and 1 or 0,
}
