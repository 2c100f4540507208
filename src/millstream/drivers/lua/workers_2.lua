-- The workers that are alive.
--
-- KEYS  1 what is known of the workers, by id   2 their ids by the millisecond at which they are forgotten
-- Returns {milliseconds since it was heard of, what is known} of each
--
-- Atomic so that a worker that is just being forgotten is listed whole or not at all.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local ids = redis.call('ZRANGEBYSCORE', KEYS[2], string.format('(%.0f', now), '+inf')
local found = {}
for _, id in ipairs(ids) do
  local known = redis.call('HGET', KEYS[1], id)
  if known then
    local heard, text = string.match(known, '^(%d+) (.*)$')
    found[#found + 1] = {math.max(0, now - tonumber(heard)), text}
  end
end
return found
