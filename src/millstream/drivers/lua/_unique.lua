-- Unique keys: who holds one, and giving them back.
-- Needs _queue.

-- The job that holds a unique key now, or nil.
local function holder_of(key, now)
  local value = redis.call('HGET', UNIQUE, key)
  if not value then return nil end
  local expiry, job = string.match(value, '^(%d+) (.*)$')
  if expiry == '0' or tonumber(expiry) > now then return job end
  return nil
end

local function hold(key, job, span, now)
  if span == '0' then
    redis.call('HSET', UNIQUE, key, '0 ' .. job)
    redis.call('HSET', HOLDS, job, key)
  else
    local expiry = digits(now + tonumber(span))
    redis.call('HSET', UNIQUE, key, expiry .. ' ' .. job)
    redis.call('ZADD', EXPIRING, expiry, key)
  end
end

-- Forget keys whose time has passed: more at a time than one call can add, so that they never pile up.
local function forget_expired(now)
  local keys = redis.call('ZRANGEBYSCORE', EXPIRING, '-inf', digits(now), 'LIMIT', 0, 1000)
  for _, key in ipairs(keys) do
    local value = redis.call('HGET', UNIQUE, key)
    local expiry = value and string.match(value, '^(%d+) ')
    -- The key may be held anew by now, for longer or until its job is gone.
    if expiry and expiry ~= '0' and tonumber(expiry) <= now then redis.call('HDEL', UNIQUE, key) end
  end
  if #keys > 0 then redis.call('ZREM', EXPIRING, unpack(keys)) end
end

-- Give back what these jobs hold until they are gone.
local function let_go(jobs)
  if #jobs == 0 or redis.call('HLEN', HOLDS) == 0 then return end
  local keys = redis.call('HMGET', HOLDS, unpack(jobs))
  for i, key in ipairs(keys) do
    if key then
      redis.call('HDEL', HOLDS, jobs[i])
      if redis.call('HGET', UNIQUE, key) == '0 ' .. jobs[i] then redis.call('HDEL', UNIQUE, key) end
    end
  end
end
