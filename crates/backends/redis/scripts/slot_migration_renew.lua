-- renew, while the slot moves: of a holder of 1 of 1, on the owner key alone. What is kept beside it has a minute more than
-- the lease had; what an operator asks is not seen.
--
-- KEYS  1 owner
-- ARGV  1 owner  2 ttl ms
-- Reply its token, if it is held and now lasts the ttl; 0 if renew_one.lua must look closer

local value = redis.pcall('GET', KEYS[1])
if type(value) ~= 'string' or string.sub(value, 1, 33) ~= ARGV[1] .. '|' then return 0 end
local token, marks = string.match(value, '^(%d+)|%d+|%d+|(%a*)|', 34)
if not token or string.find(marks, '[ek]') then return 0 end
if redis.call('PEXPIRE', KEYS[1], ARGV[2], 'GT') == 0 and redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then return 0 end
return tonumber(token)
