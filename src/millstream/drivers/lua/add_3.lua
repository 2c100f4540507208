-- Make jobs of one level waiting: the usual push, without the rest of push_15.lua.
--
-- KEYS  1 the stream   2 the index   3 where the caller's last answer is kept
-- ARGV  1 the call's number   2 how long its answer is kept, in milliseconds   3 the level
--       4 '1' where the ids were made for this call, so that no job can have them yet
--       5… the ids, then as many bodies; no id twice
-- Returns what push_15.lua returns
--
-- Atomic for the same reason. The answer is noted first, which is one command instead of the two of _once.lua:
-- only the note and the first addition can fail, and the note is taken back if the addition does.
--@include _once

local call = redis.call
local number, ttl, level = ARGV[1], ARGV[2], ARGV[3]
local last = call('SET', KEYS[3], number .. ' ', 'PX', ttl, 'GET')
local known = last and answered(last, number)
if known then
  call('SET', KEYS[3], last, 'PX', ttl)
  return known
end

local n = (#ARGV - 4) / 2
local places = ARGV[4] == '0' and call('HMGET', KEYS[2], unpack(ARGV, 5, 4 + n)) or {}
local stream, indexed, at, stand_ins = KEYS[1], {}, 0, nil
for i = 1, n do
  if places[i] then
    stand_ins = stand_ins or {}
    stand_ins[#stand_ins + 1] = {i, ARGV[4 + i]}
  else
    local entry = redis.pcall('XADD', stream, '*', 'job', ARGV[4 + n + i])
    if entry.err then
      call('DEL', KEYS[3])
      return entry
    end
    indexed[at + 1] = ARGV[4 + i]
    indexed[at + 2] = level .. entry
    at = at + 2
  end
end
if at > 0 then call('HSET', KEYS[2], unpack(indexed)) end
if not stand_ins then return '' end
local answer = cjson.encode(stand_ins)
remember(KEYS[3], number, ttl, answer)
return answer
