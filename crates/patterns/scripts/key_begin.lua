#!lua
-- A request with an idempotency key has come.
--
-- KEYS  1 the key: a hash of payload, token, until (ms), and answer once it has ended
-- ARGV  1 fingerprint of the payload  2 how long it may run, in ms  3 how long its row outlives that, in ms
-- Reply run, token | running, ms left | done, answer | other

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local kept = redis.call('HMGET', KEYS[1], 'payload', 'token', 'until', 'answer')
local ends = tonumber(kept[3] or 0)
if kept[4] or ends > now then
  if kept[1] ~= ARGV[1] then return { 'other' } end
  if kept[4] then return { 'done', kept[4] } end
  return { 'running', ends - now }
end
-- Nobody runs it: it is new, was given up (0), or its process did not come back. The last needs the same payload.
if kept[1] and ends > 0 and kept[1] ~= ARGV[1] then return { 'other' } end
local token = math.max(tonumber(kept[2] or 0) + 1, time[1] * 1000000 + time[2])
redis.call('HSET', KEYS[1], 'payload', ARGV[1], 'token', string.format('%.0f', token), 'until', now + ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[2] + ARGV[3])
return { 'run', string.format('%.0f', token) }
