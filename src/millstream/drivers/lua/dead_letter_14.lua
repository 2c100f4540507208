-- One dead letter.
--
-- KEYS  1–14 the queue's, see _queue.lua
-- ARGV  1 the job's id
-- Returns nil, or {entry id, fields, edited body or ''}
--
-- Atomic so that a body that was edited belongs to the letter.
--@include _queue

local place = redis.call('HGET', INDEX, ARGV[1])
if not place or string.sub(place, 1, 1) ~= 'x' then return nil end
local letter = redis.call('XRANGE', DEAD, string.sub(place, 2), string.sub(place, 2))[1]
if not letter then return nil end
return {letter[1], letter[2], redis.call('HGET', BODIES, ARGV[1]) or ''}
