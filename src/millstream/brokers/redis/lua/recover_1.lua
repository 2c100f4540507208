-- Entries that were delivered to a consumer in a reply that never arrived.
--
-- KEYS  1 the stream
-- ARGV  1 the group   2 the consumer   3 the last id it did get   4 the count
-- Returns {id, fields, 1} of each
--
-- They are pending for the consumer, after the last id that it got, and were delivered once: what
-- it claimed has a higher count. The idle time starts anew and the count stays, because nobody saw the
-- first delivery. Atomic so that nobody claims them in between.

local key, group, consumer, count = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[4])
local found = {}
local from = '(' .. ARGV[3]
while #found < count do
  local pending = redis.call('XPENDING', key, group, from, '+', 100, consumer)
  for _, item in ipairs(pending) do
    if #found < count and item[4] == 1 then
      local entries = redis.call('XCLAIM', key, group, consumer, 0, item[1], 'IDLE', 0, 'RETRYCOUNT', 1)
      if entries[1] and entries[1][2] then found[#found + 1] = {entries[1][1], entries[1][2], 1} end
    end
  end
  if #pending < 100 then break end
  from = '(' .. pending[100][1]
end
return found
