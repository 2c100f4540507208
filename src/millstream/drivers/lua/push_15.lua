-- Make jobs waiting, or delayed.
--
-- KEYS  1–14 the queue's, see _queue.lua   15 where the caller's last answer is kept
-- ARGV  1 the call's number   2 how long its answer is kept, in milliseconds
--       3 a letter for each job: its level, in upper case where the body does not tell the id
--       4 a digit for each job: 1 where it is delayed   5… id and body of each
--       then the delay in milliseconds of each delayed one, in order
--       then position, unique key and time in milliseconds (0: until gone) of each that has a unique key
-- Returns '' where every job was added, or a JSON list of position and id, for those that another stands for
--
-- Atomic so that a job is in the index exactly if it is in the queue: that is what makes a second push of it
-- harmless, and its repetition after a lost reply adds nothing even if the job is done by then.
--@include _queue
--@include _once
--@include _unique

local number, ttl, marks, later = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local known = recall(KEYS[15], number)
if known then return known end

local n = #marks
local ids = {}
for i = 1, n do ids[i] = ARGV[3 + 2 * i] end
local places = redis.call('HMGET', INDEX, unpack(ids))

-- A script is not rolled back: what could fail is tried before the first addition.
local delays_at = 5 + 2 * n
local unique_at = delays_at
for _, level in ipairs(LEVELS) do
  if string.find(string.lower(marks), level, 1, true) then redis.call('XLEN', STREAMS[level]) end
end
local any_delayed = string.find(later, '1', 1, true)
local now
if any_delayed then
  unique_at = unique_at + select(2, string.gsub(later, '1', ''))
  redis.call('ZCARD', DELAYED)
  redis.call('HLEN', BODIES)
end
local uniques
if unique_at <= #ARGV then
  uniques = {}
  redis.call('ZCARD', EXPIRING)
  redis.call('HLEN', HOLDS)
  for at = unique_at, #ARGV, 3 do uniques[tonumber(ARGV[at])] = at + 1 end
end
if any_delayed or uniques then now = clock() end

local earliest, first
if any_delayed then
  first = redis.call('ZRANGE', DELAYED, 0, 0, 'WITHSCORES')[2]
  first = first and tonumber(first)
end

local stand_ins, indexed, added, delay_at = {}, {}, {}, delays_at
for i = 1, n do
  local id = ids[i]
  local level = string.sub(marks, i, i)
  local delay
  if string.sub(later, i, i) == '1' then
    delay = tonumber(ARGV[delay_at])
    delay_at = delay_at + 1
  end
  if places[i] or added[id] then
    stand_ins[#stand_ins + 1] = {i, id}
  else
    local at = uniques and uniques[i]
    local holder = at and holder_of(ARGV[at], now)
    if holder then
      stand_ins[#stand_ins + 1] = {i, holder}
    else
      added[id] = true
      local place
      if delay then
        local due = now + delay
        redis.call('HSET', BODIES, id, level .. ARGV[4 + 2 * i])
        redis.call('ZADD', DELAYED, digits(due), id)
        if not earliest or due < earliest then earliest = due end
        place = 'z'
      else
        place = add(level, id, ARGV[4 + 2 * i])
      end
      indexed[#indexed + 1] = id
      indexed[#indexed + 1] = place
      if at then hold(ARGV[at], id, ARGV[at + 1], now) end
    end
  end
end
if #indexed > 0 then redis.call('HSET', INDEX, unpack(indexed)) end
if earliest and (not first or earliest < first) then
  redis.call('XADD', DUE, 'MAXLEN', 1, '*', 'due', digits(earliest))
end
if uniques then forget_expired(now) end
local answer = #stand_ins > 0 and cjson.encode(stand_ins) or ''
remember(KEYS[15], number, ttl, answer)
return answer
