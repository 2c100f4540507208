-- Make dead letters waiting or delayed again.
--
-- KEYS  1–14 the queue's, see _queue.lua   15 where the caller's last answer is kept
-- ARGV  1 the call's number   2 how long its answer is kept, in milliseconds
--       then for each: id, level (upper case: the body does not tell the id), delay in milliseconds, body, unique key or '', its time in milliseconds (0: until gone)
-- Returns a letter for each in order: 1 where it was dead, 0 where not
--
-- Atomic so that a letter is never lost and never in both places: it is added before it is taken off.
--@include _queue
--@include _once
--@include _unique

local known = recall(KEYS[15], ARGV[1])
if known then return known end
local now = clock()
local first = redis.call('ZRANGE', DELAYED, 0, 0, 'WITHSCORES')[2]
local answers, earliest = {}, nil
for at = 3, #ARGV, 6 do
  local job, level, delay, body = ARGV[at], ARGV[at + 1], tonumber(ARGV[at + 2]), ARGV[at + 3]
  local place = redis.call('HGET', INDEX, job)
  if place and string.sub(place, 1, 1) == 'x' then
    if delay > 0 then
      local due = now + delay
      redis.call('HSET', BODIES, job, level .. body)
      redis.call('ZADD', DELAYED, digits(due), job)
      redis.call('HSET', INDEX, job, 'z')
      if not earliest or due < earliest then earliest = due end
    else
      redis.call('HSET', INDEX, job, add(level, job, body))
      redis.call('HDEL', BODIES, job)
    end
    redis.call('XDEL', DEAD, string.sub(place, 2))
    -- It takes its unique key again where that is free; a job that holds it meanwhile keeps it.
    if ARGV[at + 4] ~= '' and not holder_of(ARGV[at + 4], now) then
      hold(ARGV[at + 4], job, ARGV[at + 5], now)
    end
    answers[#answers + 1] = '1'
  else
    answers[#answers + 1] = '0'
  end
end
if earliest and (not first or earliest < tonumber(first)) then
  redis.call('XADD', DUE, 'MAXLEN', 1, '*', 'due', digits(earliest))
end
local answer = table.concat(answers)
remember(KEYS[15], ARGV[1], ARGV[2], answer)
return answer
