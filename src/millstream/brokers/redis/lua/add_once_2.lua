-- Add one entry unless its key was used before; then return the id from back then.
--
-- KEYS  1 the stream   2 where the caller's key is remembered
-- ARGV  1 how long it is remembered, in milliseconds   2 MAXLEN, MINID or ''   3 the limit
--       4 '1' to trim plainly, as Redis does   5 the id   6… the fields and their values
-- Returns {id, removed, 1 if a further step could remove more, how many were above the limit}
--
-- Atomic because two calls with one key, or one call repeated after a lost reply, must add one entry.
--@include _trim

local key, memory, ttl, mode, limit, plain = KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local known = redis.call('GET', memory)
if known then return {known, 0, 0, 0} end

-- A script is not rolled back. Whatever could fail is tried before the entry is added, and the one thing
-- done before it is taken back where the addition is refused.
local floor = false
if mode ~= '' and plain ~= '1' then floor = needed_from(key) end
-- The first write must be one that a server refuses when it is out of memory: after it, it refuses nothing.
redis.call('SET', memory, '', 'PX', ttl)
local length = redis.pcall('XLEN', key)
if type(length) ~= 'table' and mode ~= '' then
  length = redis.pcall('XTRIM', key, 'MAXLEN', '=', length)
end
local id = type(length) == 'table' and length or redis.pcall('XADD', key, unpack(ARGV, 5))
if type(id) == 'table' then
  redis.call('DEL', memory)
  return id
end
redis.call('SET', memory, id, 'PX', ttl)
if mode == '' then return {id, 0, 0, 0} end
if plain == '1' then
  return {id, redis.call('XTRIM', key, mode, '=', limit), 0, 0}
end
local removed, more, excess = safe_trim(key, mode, limit, floor)
return {id, removed, more, excess}
