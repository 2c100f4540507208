-- Remove a consumer, or leave it where it has pending entries.
--
-- KEYS  1 the stream
-- ARGV  1 the group   2 the consumer   3 '1' to leave a consumer that has pending entries
-- Returns how many entries it has, or had, pending
--
-- Atomic because DELCONSUMER drops the pending entries for good: one that was delivered between the look
-- and the removal would be lost.
--@include _info

local key, group, consumer = KEYS[1], ARGV[1], ARGV[2]
if ARGV[3] == '1' and #redis.call('XPENDING', key, group, '-', '+', 1, consumer) > 0 then
  for _, item in ipairs(redis.call('XINFO', 'CONSUMERS', key, group)) do
    local found = by_name(item)
    if found['name'] == consumer then return found['pending'] end
  end
end
return redis.call('XGROUP', 'DELCONSUMER', key, group, consumer)
