-- undo: gives the lock back, and wakes its waiters. ADR 0017. Put after node.lua.
--
-- KEYS  1 owner  2 the tombstone to write: of the attempt, or of the owner
-- ARGV  1 owner  2 attempt, or empty for any attempt of the owner  3 ttl of the tombstone in ms, or -1
--       4 the channel of the resource
-- Reply 1 the lock was given back; 0 it was not held so

local tombstone_ms = tonumber(ARGV[3])
if tombstone_ms >= 0 then redis.call('SET', KEYS[2], 'b', 'PX', math.max(1, tombstone_ms)) end
local lock = read_lock()
if not lock or lock.owner ~= ARGV[1] or (ARGV[2] ~= '' and lock.attempt ~= ARGV[2]) then return 0 end
redis.call('DEL', KEYS[1])
redis.call('PUBLISH', ARGV[4], '')
return 1
