-- Remove the oldest entries that no group needs, one bounded step.
--
-- KEYS  1 the stream
-- ARGV  1 MAXLEN or MINID   2 the limit
-- Returns {removed, 1 if a further step could remove more, how many were above the limit}
--
-- Atomic because a group could be given an entry between looking at the groups and trimming.
--@include _trim

local floor = needed_from(KEYS[1])
local removed, more, excess = safe_trim(KEYS[1], ARGV[1], ARGV[2], floor)
return {removed, more, excess}
