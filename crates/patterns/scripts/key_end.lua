#!lua
-- Stores the answer of a request with an idempotency key, or gives up its claim.
--
-- KEYS  1 the key
-- ARGV  1 token  2 finish | abandon  3 how long the hash is kept, in ms  4 answer
-- Reply 1; 0 if another request took the key over: then nothing is changed

local kept = redis.call('HMGET', KEYS[1], 'token', 'answer')
if kept[1] ~= ARGV[1] or kept[2] then return 0 end
if ARGV[2] == 'finish' then
  redis.call('HSET', KEYS[1], 'answer', ARGV[4])
else
  redis.call('HSET', KEYS[1], 'until', 0)
end
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return 1
