-- Who holds a reserved job.
--
-- KEYS  1 the stream
-- ARGV  1 the entry id
-- Returns nil, or {owner, delivery count}
--
-- A script so that a stream without a group is no error.
local rows = redis.pcall('XPENDING', KEYS[1], 'workers', ARGV[1], ARGV[1], 1)
if rows['err'] or #rows == 0 then return nil end
return {rows[1][2], rows[1][4]}
