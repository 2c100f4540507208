-- Make jobs of one level waiting: the usual push, without the rest of push_15.lua.
--
-- KEYS  1 the stream   2 the index   3 where the caller's last answer is kept
-- ARGV  1 the call's number   2 how long its answer is kept, in milliseconds   3 the level
--       4… the ids, then as many bodies; no id twice
-- Returns what push_15.lua returns
--
-- Atomic for the same reason. Nothing has to be tried first: only the first addition can fail.
--@include _once

local call = redis.call
local number, level = ARGV[1], ARGV[3]
local known = recall(KEYS[3], number)
if known then return known end

local n = (#ARGV - 3) / 2
local places = call('HMGET', KEYS[2], unpack(ARGV, 4, 3 + n))
local stream, indexed, at, stand_ins = KEYS[1], {}, 0, nil
for i = 1, n do
  if places[i] then
    stand_ins = stand_ins or {}
    stand_ins[#stand_ins + 1] = {i, ARGV[3 + i]}
  else
    indexed[at + 1] = ARGV[3 + i]
    indexed[at + 2] = level .. call('XADD', stream, '*', 'job', ARGV[3 + n + i])
    at = at + 2
  end
end
if at > 0 then call('HSET', KEYS[2], unpack(indexed)) end
local answer = stand_ins and cjson.encode(stand_ins) or ''
remember(KEYS[3], number, ARGV[2], answer)
return answer
