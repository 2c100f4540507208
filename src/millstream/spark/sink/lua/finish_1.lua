-- Mark a batch as done.
--
-- KEYS  1 the fence
-- ARGV  1 the batch   2 how long the fence lives from now, in milliseconds
-- Returns 1, or 0 where the fence is at another batch by now

if redis.call('HGET', KEYS[1], 'batch') ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'state', 'done')
redis.call('HDEL', KEYS[1], 'manifest')
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 1
