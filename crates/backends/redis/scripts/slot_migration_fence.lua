-- The second half of slot_migration_acquire.lua, on the fence key alone: raises the fence, so that no later grant has a
-- token at or below this one. ADR 0015.
--
-- KEYS  1 fence
-- ARGV  1 token
-- Reply 1

local time = redis.call('TIME')
local token = tonumber(ARGV[1])
local last = redis.call('GET', KEYS[1])
if not last or (tonumber(last) or 0) < token then
  local ahead_ms = math.max(0, math.ceil((token - time[1] * 1000000 - time[2]) / 1000))
  -- As in acquire.lua: two hours, and longer if the token is ahead of the clock.
  redis.call('SET', KEYS[1], ARGV[1], 'PX', 7200000 + ahead_ms)
end
return 1
