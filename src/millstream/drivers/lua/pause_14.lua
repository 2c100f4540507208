-- Let nobody be given a job of the queue.
--
-- KEYS  1–14 the queue's, see _queue.lua
-- Returns 1, or 0 where it was paused
--
-- The group's position is moved to the last possible id: then the server itself gives out nothing, not
-- even to a reader that is already waiting in a blocking read, which no flag could stop. The true positions
-- are kept in the state. Atomic because a job that is added in between would be passed over.
--@include _queue
--@include _join
--@include _position

if redis.call('HGET', STATE, 'paused') then return 0 end
join()
local kept = {}
for i, level in ipairs(LEVELS) do kept[i] = position(level) end
redis.call('HSET', STATE, 'paused', 1, 'at_c', kept[1], 'at_h', kept[2], 'at_d', kept[3], 'at_l', kept[4])
for _, level in ipairs(LEVELS) do redis.call('XGROUP', 'SETID', STREAMS[level], GROUP, LAST_ID) end
return 1
