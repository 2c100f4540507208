-- End a pause.
--
-- KEYS  1–14 the queue's, see _queue.lua
-- Returns 1, or 0 where it was not paused
--
-- Atomic because a position that is moved back without the others would give out lower priorities first.
-- Moving a position wakes nobody, so the bell is rung.
--@include _queue
--@include _join

if not redis.call('HGET', STATE, 'paused') then return 0 end
join()
for _, level in ipairs(LEVELS) do
  redis.call('XGROUP', 'SETID', STREAMS[level], GROUP, redis.call('HGET', STATE, 'at_' .. level))
end
redis.call('HDEL', STATE, 'paused', 'at_c', 'at_h', 'at_d', 'at_l')
redis.call('XADD', BELL, 'MAXLEN', 1, '*', 'ring', 1)
return 1
