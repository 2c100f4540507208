-- When the next delayed job is due.
--
-- KEYS  for each queue: its delayed jobs, its stream of news about them
-- Returns for each queue {milliseconds until then, or -1 where there is none; the last id of the news}
--
-- Atomic because news after that id are about jobs that were not looked at here.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local found = {}
for i = 1, #KEYS, 2 do
  local due = redis.call('ZRANGE', KEYS[i], 0, 0, 'WITHSCORES')[2]
  local news = redis.call('XREVRANGE', KEYS[i + 1], '+', '-', 'COUNT', 1)[1]
  found[#found + 1] = {due and math.max(0, tonumber(due) - now) or -1, news and news[1] or '0-0'}
end
return found
