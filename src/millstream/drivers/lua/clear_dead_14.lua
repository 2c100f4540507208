-- Forget dead letters.
--
-- KEYS  1–14 the queue's, see _queue.lua
-- ARGV  the jobs' ids, a thousand at the most; none for the thousand oldest letters
-- Returns how many
--
-- Atomic because a letter may be retried in between: then it is not dead any more.
--@include _queue

local jobs, entries = {}, {}
if #ARGV == 0 then
  for _, letter in ipairs(redis.call('XRANGE', DEAD, '-', '+', 'COUNT', 1000)) do
    entries[#entries + 1] = letter[1]
    if letter[2][3] == 'id' then jobs[#jobs + 1] = letter[2][4] end
  end
else
  for i, place in ipairs(redis.call('HMGET', INDEX, unpack(ARGV))) do
    if place and string.sub(place, 1, 1) == 'x' then
      jobs[#jobs + 1] = ARGV[i]
      entries[#entries + 1] = string.sub(place, 2)
    end
  end
end
if #entries == 0 then return 0 end
if #jobs > 0 then
  redis.call('HDEL', INDEX, unpack(jobs))
  redis.call('HDEL', BODIES, unpack(jobs))
end
return redis.call('XDEL', DEAD, unpack(entries))
