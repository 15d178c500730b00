-- release while a cluster moves the slot: compares and deletes, on the owner key alone. ADR 0015.
--
-- KEYS  1 owner
-- ARGV  1 owner
-- Reply 1 it was held, with nothing special about it; 0 release.lua must take a closer look

local value = redis.pcall('GET', KEYS[1])
if type(value) ~= 'string' or string.sub(value, 1, 33) ~= ARGV[1] .. '|' then return 0 end
-- The empty field is the marks: a holder with marks is not plain.
if not string.match(value, '^%d+|%d+|%d+||', 34) then return 0 end
redis.call('DEL', KEYS[1])
return 1
