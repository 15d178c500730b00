-- renew while a cluster moves the slot: a holder of 1 of 1, on the owner key alone. ADR 0015.
--
-- Its extras in other keys are not renewed; they live a minute longer than the lease did. A request to finish is not
-- seen.
--
-- KEYS  1 owner
-- ARGV  1 owner  2 ttl ms
-- Reply its token, if it is held and now lasts the ttl; 0 if renew_one.lua must take a closer look

local value = redis.pcall('GET', KEYS[1])
if type(value) ~= 'string' or string.sub(value, 1, 33) ~= ARGV[1] .. '|' then return 0 end
local token, marks = string.match(value, '^(%d+)|%d+|%d+|(%a*)|', 34)
-- An evicted lease is not renewed, and a kept one was released.
if not token or string.find(marks, '[ek]') then return 0 end
-- GT never shortens a lease.
if redis.call('PEXPIRE', KEYS[1], ARGV[2], 'GT') == 0 and redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then return 0 end
return tonumber(token)
