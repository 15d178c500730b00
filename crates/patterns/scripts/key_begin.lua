#!lua
-- Claims an idempotency key for a request, or says why not.
--
-- KEYS  1 the key: a hash with payload, token, until (ms), and answer once the request has ended
-- ARGV  1 fingerprint of the payload  2 how long the claim lasts, in ms  3 how long the hash is kept after that, in ms
-- Reply run, token | running, ms until the claim runs out | done, answer | other (another payload)

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local kept = redis.call('HMGET', KEYS[1], 'payload', 'token', 'until', 'answer')
local ends = tonumber(kept[3] or 0)
if kept[4] or ends > now then
  if kept[1] ~= ARGV[1] then return { 'other' } end
  if kept[4] then return { 'done', kept[4] } end
  return { 'running', ends - now }
end
-- No request runs: the key is new, was given up (until is 0), or the claim has run out. In the last case the
-- request may have had an effect, so only the same payload may take it over.
if kept[1] and ends > 0 and kept[1] ~= ARGV[1] then return { 'other' } end
local token = math.max(tonumber(kept[2] or 0) + 1, time[1] * 1000000 + time[2])
redis.call('HSET', KEYS[1], 'payload', ARGV[1], 'token', string.format('%.0f', token), 'until', now + ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[2] + ARGV[3])
return { 'run', string.format('%.0f', token) }
