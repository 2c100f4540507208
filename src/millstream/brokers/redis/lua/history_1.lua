-- A consumer's own pending entries after an id; each counts as delivered once more.
--
-- KEYS  1 the stream
-- ARGV  1 the group   2 the consumer   3 the id   4 the count
-- Returns {id, fields, delivery count} of each
--
-- Atomic so that the counts belong to this delivery.
--@include _counts

local key, group, consumer, after, count = KEYS[1], ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local found = {}
-- Entries that were deleted come without fields. They are passed over, and must not use up the count:
-- a caller takes a short answer for the end of the list.
while #found < count do
  local want = math.min(count - #found, 1000)
  local reply = redis.call('XREADGROUP', 'GROUP', group, consumer, 'COUNT', want, 'STREAMS', key, after)
  local entries = reply and reply[1][2] or {}
  for _, entry in ipairs(with_counts(key, group, entries)) do found[#found + 1] = entry end
  if #entries < want then break end
  after = entries[#entries][1]
end
return found
