-- release, while the slot moves: compare and delete, on the owner key alone.
--
-- KEYS  1 owner
-- ARGV  1 owner
-- Reply 1 it was held, with nothing special about it; 0 release.lua must look closer

local value = redis.pcall('GET', KEYS[1])
if type(value) ~= 'string' or string.sub(value, 1, 33) ~= ARGV[1] .. '|' then return 0 end
if not string.match(value, '^%d+|%d+|%d+||', 34) then return 0 end
redis.call('DEL', KEYS[1])
return 1
