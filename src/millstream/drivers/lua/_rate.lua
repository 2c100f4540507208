-- At most so many starts in any span of time, exactly. The starts of that span are kept in a list: the first
-- element is their sum, then 'first last count' for starts that lie within a five-hundredth of the span. Such a
-- bunch counts until its last start is out of the span, so what is coarse about it only ever delays a start.
-- Times are microseconds of the server's clock.

-- How many may start now, and the microseconds until one may where it is none.
local function free_starts(key, limit, per, now)
  local sum = tonumber(redis.call('LINDEX', key, 0) or 0)
  local before = sum
  while sum > 0 do
    local bunch = redis.call('LINDEX', key, 1)
    if not bunch then sum = 0 break end
    local first, last, count = string.match(bunch, '^(%d+) (%d+) (%d+)$')
    last = tonumber(last)
    -- A start in the future was noted before the clock was set back; waiting for it could take for ever.
    if last > now - per and last <= now then
      if sum < limit then break end
      return 0, math.max(1, last + per - now)
    end
    sum = sum - tonumber(count)
    redis.call('LSET', key, 1, sum)
    redis.call('LPOP', key)
  end
  if before > 0 and sum <= 0 then redis.call('DEL', key) end
  return limit - math.max(sum, 0), 0
end

local function note_starts(key, count, per, now)
  local sum = tonumber(redis.call('LINDEX', key, 0) or 0)
  if sum > 0 then
    local first, _, some = string.match(redis.call('LINDEX', key, -1), '^(%d+) (%d+) (%d+)$')
    if now - tonumber(first) < per / 500 then
      redis.call('LSET', key, -1, string.format('%s %.0f %d', first, now, some + count))
    else
      redis.call('RPUSH', key, string.format('%.0f %.0f %d', now, now, count))
    end
    redis.call('LSET', key, 0, sum + count)
  else
    redis.call('DEL', key)
    redis.call('RPUSH', key, count, string.format('%.0f %.0f %d', now, now, count))
  end
  redis.call('PEXPIRE', key, math.ceil(per / 1000) + 1000)
end
