-- Move one block of jobs from a stage to its queue, exactly as push_15.lua pushes them.
--
-- KEYS  1–14 the queue's, see _queue.lua   15 where push_15.lua keeps its answer   16 the stage
-- ARGV  1 how many values the stage has, as the caller believes
-- Returns {how many it has now, how many jobs the block had}
--
-- Atomic so that a job is either staged or pushed, even if it was run and is gone by the next call. A block
-- holds the arguments of push_15.lua, the first two of them empty. The block goes last: where the push is refused it stays.

local stage = KEYS[16]
local length = redis.call('LLEN', stage)
if length ~= tonumber(ARGV[1]) or length < 2 then return {length, 0} end

local function push(ARGV)
--@include push_15
end

local block = cmsgpack.unpack(redis.call('LINDEX', stage, 0))
-- Its first two arguments are for calls that are repeated: a number that grows, and how long it is remembered.
-- Here the stage's length does that.
block[1], block[2] = string.format('%.0f', 1e9 - length), '1000'
local answer = push(block)
if type(answer) == 'table' and answer.err then return answer end
redis.call('LPOP', stage)
return {length - 1, #block[3]}
