#!lua
-- Add one entry, then trim by the rule that nothing needed is removed.
--
-- KEYS  1 the stream
-- ARGV  1 MAXLEN or MINID   2 the limit   3 the id   4… the fields and their values
-- Returns {id, removed, 1 if a further step could remove more, how many were above the limit}
--
-- Atomic because the limit belongs to the addition: no reader sees the stream longer than asked,
-- unless somebody needs what is too much.
--
-- The first line makes a server that is out of memory refuse the whole script. Without it the server would
-- only refuse the XADD if nothing was written before it, and a trim that removes nothing counts as a write.
--@include _trim

local key = KEYS[1]
-- A script is not rolled back. Whatever could fail is tried before the entry is added: the look at the
-- groups, and a trim that removes nothing (a user may lack the right to trim).
local floor = needed_from(key)
redis.call('XTRIM', key, 'MAXLEN', '=', redis.call('XLEN', key))
local id = redis.call('XADD', key, unpack(ARGV, 3))
-- A group that was given everything so far still needs the new entry.
local removed, more, excess = safe_trim(key, ARGV[1], ARGV[2], floor)
return {id, removed, more, excess}
