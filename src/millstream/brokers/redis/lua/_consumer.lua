-- Let a consumer exist. Redis 7.0 makes one only when it gets something, later servers always.
-- A server that is out of memory refuses this, but not the reads and claims that make room: so that is
-- passed over, and the consumer comes to be with the first entry it gets.
local function let_exist(key, group, consumer)
  local reply = redis.pcall('XGROUP', 'CREATECONSUMER', key, group, consumer)
  if type(reply) == 'table' and reply['err'] and not string.find(reply['err'], 'OOM', 1, true) then
    error(reply)
  end
end
