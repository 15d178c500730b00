#!lua
-- A request with an idempotency key still runs.
--
-- KEYS  1 the key
-- ARGV  1 token  2 how long it may run on, in ms  3 how long its row outlives that, in ms
-- Reply 1; 0 if another one took it over, and nothing was changed

local kept = redis.call('HMGET', KEYS[1], 'token', 'answer', 'until')
if kept[1] ~= ARGV[1] or kept[2] then return 0 end
local time = redis.call('TIME')
local ends = math.max(tonumber(kept[3]), time[1] * 1000 + math.floor(time[2] / 1000) + ARGV[2])
redis.call('HSET', KEYS[1], 'until', string.format('%.0f', ends))
redis.call('PEXPIRE', KEYS[1], ARGV[2] + ARGV[3])
return 1
