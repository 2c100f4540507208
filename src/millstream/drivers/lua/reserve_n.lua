-- Take waiting jobs of several queues, strictly by priority.
--
-- KEYS  for each queue: its four streams in the order of priority, its state, its recent starts
-- ARGV  1 the owner   2 how many   3 the age in milliseconds from which on a job goes first, or '' not to look
--       4 and 5 the first and the last level to take from   then for each queue its rate limit: how many starts, in how many microseconds; 0 and 0 for none
-- Returns {parts, waits, missing}: parts is {queue, level, jobs, named, counts} of what was taken in that order,
--   jobs and named as in _flat.lua, counts empty for first deliveries; waits is for each queue -1 (paused), 0, or the microseconds until its limit
--   allows a start; missing are the positions of queues that lack a group
--
-- Atomic so that no job of a lower priority is taken while a higher one waits, and that two workers together
-- start no more than a limit allows.
--@include _rate
--@include _flat

local GROUP, RELEASED = 'workers', '~released'
local LETTERS = {'c', 'h', 'd', 'l'}
local PER_QUEUE = 6
local owner, budget, oldest = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local queues = #KEYS / PER_QUEUE
local parts, waits, missing = {}, {}, {}
local released, allowed, started = {}, {}, {}

local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]
local open = {}
for q = 1, queues do
  local base = (q - 1) * PER_QUEUE
  local state = redis.call('HMGET', KEYS[base + 5], 'paused', 'c', 'h', 'd', 'l')
  waits[q] = 0
  if state[1] then
    waits[q] = -1
  else
    local limit, per = tonumber(ARGV[4 + 2 * q]), tonumber(ARGV[5 + 2 * q])
    allowed[q] = budget
    if limit > 0 then
      allowed[q], waits[q] = free_starts(KEYS[base + 6], limit, per, now_us)
    end
    if allowed[q] > 0 then
      released[q] = {tonumber(state[2] or 0), tonumber(state[3] or 0), tonumber(state[4] or 0), tonumber(state[5] or 0)}
      started[q] = 0
      open[#open + 1] = q
    end
  end
end

-- Take from one stream; how many it gave.
local function take(q, level, most)
  if most > allowed[q] then most = allowed[q] end
  if most > budget then most = budget end
  if most < 1 then return 0 end
  local base = (q - 1) * PER_QUEUE
  local key, got = KEYS[base + level], 0
  if released[q][level] > 0 then
    local rows = redis.call('XPENDING', key, GROUP, '-', '+', most, RELEASED)
    local left = 0
    if #rows > 0 then
      local ids, count_of, counts = {}, {}, {}
      for i, row in ipairs(rows) do
        ids[i] = row[1]
        count_of[row[1]] = row[4] + 1
      end
      local entries = redis.call('XCLAIM', key, GROUP, owner, 0, unpack(ids))
      for i, entry in ipairs(entries) do counts[i] = count_of[entry[1]] end
      got = #entries
      if got > 0 then
        local jobs, named = flat(entries)
        parts[#parts + 1] = {q, level, jobs, named, counts}
      end
      left = math.max(0, released[q][level] - #rows)
    end
    released[q][level] = left
    redis.call('HSET', KEYS[base + 5], LETTERS[level], left)
  end
  if got < most then
    local reply = redis.pcall('XREADGROUP', 'GROUP', GROUP, owner, 'COUNT', most - got, 'STREAMS', key, '>')
    if reply then
      if reply['err'] then
        -- Not raised: what was taken before would be pending for an owner that never saw it.
        if not string.find(reply['err'], 'NOGROUP', 1, true) then
          if #parts == 0 then error(reply) end
        else
          missing[#missing + 1] = q
        end
      else
        local entries = reply[1][2]
        got = got + #entries
        local jobs, named = flat(entries)
        parts[#parts + 1] = {q, level, jobs, named, {}}
      end
    end
  end
  budget = budget - got
  allowed[q] = allowed[q] - got
  started[q] = started[q] + got
  return got
end

-- Jobs that have waited for too long go first, the oldest of them before the others.
if oldest ~= '' then
  local cutoff = math.floor(now_us / 1000) - tonumber(oldest)
  local heads = {}
  for _, q in ipairs(open) do
    for level = 1, 4 do
      local key = KEYS[(q - 1) * PER_QUEUE + level]
      local aged, head = 0, nil
      if released[q][level] > 0 then
        local row = redis.call('XPENDING', key, GROUP, '-', '+', 1, RELEASED)[1]
        local ms = row and tonumber(string.match(row[1], '^%d+'))
        if ms and ms <= cutoff then aged, head = released[q][level], ms end
      end
      if redis.call('XLEN', key) > 0 then
        local groups = redis.pcall('XINFO', 'GROUPS', key)
        for _, group in ipairs(groups) do
          local at = {}
          for i = 1, #group, 2 do at[group[i]] = group[i + 1] end
          if at['name'] == GROUP then
            local most = math.min(budget, 100)
            local waiting =
              redis.call('XRANGE', key, '(' .. at['last-delivered-id'], string.format('%.0f', cutoff), 'COUNT', most)
            if #waiting > 0 then
              local ms = tonumber(string.match(waiting[1][1], '^%d+'))
              aged = aged + #waiting
              if not head or ms < head then head = ms end
            end
          end
        end
      end
      if aged > 0 then heads[#heads + 1] = {head, q, level, aged} end
    end
  end
  table.sort(heads, function(a, b) return a[1] < b[1] end)
  for _, head in ipairs(heads) do take(head[2], head[3], head[4]) end
end

for level = tonumber(ARGV[4]), tonumber(ARGV[5]) do
  if budget < 1 then break end
  -- Each queue gets its share first; what the others leave goes to those that have more.
  local more = open
  local left = #open
  while budget > 0 and #more > 0 do
    local again = {}
    for _, q in ipairs(more) do
      local share = math.ceil(budget / left)
      left = left - 1
      if share > 0 and take(q, level, share) == share then again[#again + 1] = q end
    end
    if #open == 1 then break end
    more, left = again, #again
  end
end

for _, q in ipairs(open) do
  local limit, per = tonumber(ARGV[4 + 2 * q]), tonumber(ARGV[5 + 2 * q])
  if limit > 0 then
    if started[q] > 0 then note_starts(KEYS[(q - 1) * PER_QUEUE + 6], started[q], per, now_us) end
    local free
    free, waits[q] = free_starts(KEYS[(q - 1) * PER_QUEUE + 6], limit, per, now_us)
  end
end
return {parts, waits, missing}
