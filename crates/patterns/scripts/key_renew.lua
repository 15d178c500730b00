#!lua
-- Extends the claim of an idempotency key, because its request still runs.
--
-- KEYS  1 the key
-- ARGV  1 token  2 how long the claim lasts from now, in ms  3 how long the hash is kept after that, in ms
-- Reply 1; 0 if another request took the key over: then nothing is changed

local kept = redis.call('HMGET', KEYS[1], 'token', 'answer', 'until')
if kept[1] ~= ARGV[1] or kept[2] then return 0 end
local time = redis.call('TIME')
local ends = math.max(tonumber(kept[3]), time[1] * 1000 + math.floor(time[2] / 1000) + ARGV[2])
redis.call('HSET', KEYS[1], 'until', string.format('%.0f', ends))
redis.call('PEXPIRE', KEYS[1], ARGV[2] + ARGV[3])
return 1
