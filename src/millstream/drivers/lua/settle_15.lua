-- Say what became of reserved jobs.
--
-- KEYS  1–14 the queue's, see _queue.lua   15 where the caller's last answer is kept
-- ARGV  1 the call's number   2 how long its answer is kept, in milliseconds, then sections of jobs that have these
--       in common: level, owner, delivery count, outcome (c, r, b, f), how many; then the entry ids, then the
--       job ids, then for each job
--         c (complete), f (release): nothing
--         r (retry): delay in milliseconds, level (upper case: the body does not tell the id), body
--         b (bury): body, reason, error, traceback, attempts
-- Returns '' where the caller owned all of them, or a letter for each in order: 1 owned and settled, 0 not
--
-- Atomic so that nobody takes a job over between the look at its owner and the change, and that a job is
-- never in two states or in none.
--@include _queue
--@include _once
--@include _unique
--@include _owned

local number, ttl = ARGV[1], ARGV[2]
local known = recall(KEYS[15], number)
if known then return known end

local EXTRA = {c = 0, f = 0, r = 3, b = 5}
local answers, refused = {}, false
local earliest, now

-- Whatever can be refused for lack of memory comes before anything is removed.
local function retry(job, at)
  local delay, level, body = tonumber(ARGV[at]), ARGV[at + 1], ARGV[at + 2]
  if delay > 0 then
    now = now or clock()
    local due = now + delay
    redis.call('HSET', BODIES, job, level .. body)
    redis.call('ZADD', DELAYED, digits(due), job)
    redis.call('HSET', INDEX, job, 'z')
    if not earliest or due < earliest then earliest = due end
  else
    redis.call('HSET', INDEX, job, add(level, job, body))
  end
end

local function bury(level, stream, entry_id, job, at)
  now = now or clock()
  local entry = redis.call(
    'XADD', DEAD, '*', 'job', ARGV[at], 'id', job, 'original_stream', stream, 'original_id', entry_id,
    'reason', ARGV[at + 1], 'error', ARGV[at + 2], 'traceback', ARGV[at + 3], 'attempts', ARGV[at + 4],
    'moved_at', digits(now), 'level', level
  )
  redis.call('HSET', INDEX, job, 'x' .. entry)
end

-- Whether the caller owns exactly these entries and they follow each other in its list: then they need no set.
local function owns_all(stream, owner, deliveries, at, n)
  local rows = redis.pcall('XPENDING', stream, GROUP, ARGV[at], '+', n, owner)
  if #rows ~= n then return false end
  for i = 1, n do
    local row = rows[i]
    if row[1] ~= ARGV[at + i - 1] or row[4] ~= deliveries then return false end
  end
  return true
end

local first = redis.call('ZRANGE', DELAYED, 0, 0, 'WITHSCORES')[2]
local at = 3
while at <= #ARGV do
  local level, owner, deliveries, outcome, n =
    ARGV[at], ARGV[at + 1], tonumber(ARGV[at + 2]), ARGV[at + 3], tonumber(ARGV[at + 4])
  local stream, extra = STREAMS[level], EXTRA[outcome]
  at = at + 5
  if outcome == 'c' and owns_all(stream, owner, deliveries, at, n) then
    redis.call('XACK', stream, GROUP, unpack(ARGV, at, at + n - 1))
    redis.call('XDEL', stream, unpack(ARGV, at, at + n - 1))
    redis.call('HDEL', INDEX, unpack(ARGV, at + n, at + 2 * n - 1))
    if redis.call('HLEN', HOLDS) > 0 then let_go({unpack(ARGV, at + n, at + 2 * n - 1)}) end
    answers[#answers + 1] = string.rep('1', n)
  else
    local mine = owned(stream, owner, deliveries, {unpack(ARGV, at, at + n - 1)})
    local entries, jobs = {}, {}
    for i = 1, n do
      local id, job = ARGV[at + i - 1], ARGV[at + n + i - 1]
      if mine[id] then
        mine[id] = nil -- named twice in one call: the second time it is settled already
        entries[#entries + 1] = id
        jobs[#jobs + 1] = job
        answers[#answers + 1] = '1'
        local more = at + 2 * n + (i - 1) * extra
        if outcome == 'r' then
          retry(job, more)
        elseif outcome == 'b' then
          bury(level, stream, id, job, more)
        end
      else
        answers[#answers + 1] = '0'
        refused = true
      end
    end
    if #entries > 0 then
      if outcome == 'f' then
        local claim = {'XCLAIM', stream, GROUP, RELEASED, 0}
        for _, id in ipairs(entries) do claim[#claim + 1] = id end
        claim[#claim + 1] = 'RETRYCOUNT'
        claim[#claim + 1] = deliveries - 1
        claim[#claim + 1] = 'JUSTID'
        redis.call(unpack(claim))
        redis.call('HINCRBY', STATE, level, #entries)
        redis.call('XADD', BELL, 'MAXLEN', 1, '*', 'ring', 1)
      else
        redis.call('XACK', stream, GROUP, unpack(entries))
        redis.call('XDEL', stream, unpack(entries))
        if outcome == 'c' then redis.call('HDEL', INDEX, unpack(jobs)) end
        if outcome ~= 'r' then let_go(jobs) end
      end
    end
  end
  at = at + (2 + extra) * n
end
if earliest and (not first or earliest < tonumber(first)) then
  redis.call('XADD', DUE, 'MAXLEN', 1, '*', 'due', digits(earliest))
end
local answer = refused and table.concat(answers) or ''
remember(KEYS[15], number, ttl, answer)
return answer
