-- The second half of moving_acquire.lua, on the fence key alone: no later grant has a token at or below this one.
--
-- KEYS  1 fence
-- ARGV  1 token
-- Reply 1

local time = redis.call('TIME')
local token = tonumber(ARGV[1])
local last = redis.call('GET', KEYS[1])
if not last or (tonumber(last) or 0) < token then
  local ahead = math.max(0, math.ceil((token - time[1] * 1000000 - time[2]) / 1000))
  redis.call('SET', KEYS[1], ARGV[1], 'PX', 7200000 + ahead)
end
return 1
