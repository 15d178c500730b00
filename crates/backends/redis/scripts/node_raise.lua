-- raise: makes a register at least this number, with no owner.
--
-- KEYS  1 register
-- ARGV  1 number  2 the retention, in ms
-- Reply 1 it was raised; 0 it was as high already

local time = redis.call('TIME')
local now, number = time[1] * 1000000 + time[2], tonumber(ARGV[1])
local last = tonumber(string.match(redis.call('GET', KEYS[1]) or '', '^(%d+)|') or 0)
if last >= number then return 0 end
-- A number ahead of the clock must be remembered for longer.
redis.call('SET', KEYS[1], ARGV[1] .. '|', 'PX',
  string.format('%.0f', ARGV[2] + math.max(0, math.ceil((number - now) / 1000))))
return 1
