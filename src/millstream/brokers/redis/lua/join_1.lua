-- Let a consumer exist, and learn where its group stands.
--
-- KEYS  1 the stream
-- ARGV  1 the group   2 the consumer
-- Returns the last id that the group was given
--
-- Whatever this consumer is given later has a greater id: that is how a reply that never arrived is found
-- again.
-- Atomic because the id must not be newer than what the consumer was given.
--@include _consumer
--@include _info

local key, group, consumer = KEYS[1], ARGV[1], ARGV[2]
let_exist(key, group, consumer)
for _, found in ipairs(groups_of(key)) do
  if found['name'] == group then return found['last-delivered-id'] end
end
