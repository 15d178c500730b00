-- undo: gives the lock back, and wakes its waiters. ADR 0017. The stored values are as in node.lua.
--
-- KEYS  1 owner  2 the tombstone to write, of the attempt or of the owner; missing if none is written
-- ARGV  1 owner  2 attempt, or empty for any attempt of the owner  3 the channel of the resource
--       4 ttl of the tombstone in ms; only with KEYS 2
-- Reply 1 the lock was given back; 0 it was not held so

if KEYS[2] then redis.call('SET', KEYS[2], 'b', 'PX', math.max(1, ARGV[4])) end
local owner, attempt = string.match(redis.call('GET', KEYS[1]) or '', '^(%x+)|%d+|%d+|x(%x+)|')
if owner ~= ARGV[1] or (ARGV[2] ~= '' and attempt ~= ARGV[2]) then return 0 end
redis.call('DEL', KEYS[1])
redis.call('PUBLISH', ARGV[3], '')
return 1
