-- Keep stages from expiring while they are published.
--
-- KEYS  the stages, and the names of their streams
-- ARGV  1 how long they live from now, in milliseconds   2… how many blocks each must have
-- Returns 0, or the position of the first that is not whole
--
-- All are looked at before one is touched: what is not whole is not published at all.

for i = 1, #KEYS do
  if redis.call('LLEN', KEYS[i]) ~= tonumber(ARGV[1 + i]) then return i end
end
for i = 1, #KEYS do redis.call('PEXPIRE', KEYS[i], ARGV[1]) end
return 0
