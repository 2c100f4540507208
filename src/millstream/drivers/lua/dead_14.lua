-- Dead letters, oldest first.
--
-- KEYS  1–14 the queue's, see _queue.lua
-- ARGV  1 the entry id after which to begin, or ''   2 the job after which to begin, or ''   3 how many
-- Returns {entry id, fields, edited body or ''} of each
--
-- Atomic so that a body that was edited belongs to the letter.
--@include _queue

local after = ARGV[1]
if ARGV[2] ~= '' then
  local place = redis.call('HGET', INDEX, ARGV[2])
  if place and string.sub(place, 1, 1) == 'x' then after = string.sub(place, 2) end
end
local letters = redis.call('XRANGE', DEAD, after == '' and '-' or '(' .. after, '+', 'COUNT', tonumber(ARGV[3]))
local any_edited = redis.call('HLEN', BODIES) > 0
local found = {}
for i, letter in ipairs(letters) do
  local edited = false
  if any_edited then edited = redis.call('HGET', BODIES, letter[2][4]) end
  found[i] = {letter[1], letter[2], edited or ''}
end
return found
