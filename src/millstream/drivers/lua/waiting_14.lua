-- Some of the waiting jobs, for who wants to forget them.
--
-- KEYS  1–14 the queue's, see _queue.lua
-- ARGV  1 how many
-- Returns {level and entry id, body, the job's id or ''} of each
--
-- A script because only here it is known which entries of a stream are waiting: those above the group's position, and
-- those that were released.
--@include _queue
--@include _position

local most, found = tonumber(ARGV[1]), {}
local function note(level, entries)
  for _, entry in ipairs(entries) do
    found[#found + 1] = {level .. entry[1], entry[2][2], entry[2][3] == 'id' and entry[2][4] or ''}
  end
  most = most - #entries
end
for _, level in ipairs(LEVELS) do
  if most > 0 and redis.call('XLEN', STREAMS[level]) > 0 then
    if tonumber(redis.call('HGET', STATE, level) or 0) > 0 then
      for _, row in ipairs(redis.call('XPENDING', STREAMS[level], GROUP, '-', '+', most, RELEASED)) do
        note(level, redis.call('XRANGE', STREAMS[level], row[1], row[1]))
      end
    end
    if most > 0 then
      note(level, redis.call('XRANGE', STREAMS[level], '(' .. (position(level) or '0-0'), '+', 'COUNT', most))
    end
  end
end
return found
