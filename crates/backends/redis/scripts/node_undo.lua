-- undo: gives the lock back, and lets whoever listens know.
--
-- KEYS  1 owner  2 a grave
-- ARGV  1 owner  2 attempt, or empty for whatever the owner has  3 bury for ms, or -1  4 the channel of the resource
-- Reply 1 it was there; 0 it was not

local bury = tonumber(ARGV[3])
if bury >= 0 then redis.call('SET', KEYS[2], 'b', 'PX', math.max(1, bury)) end
local lock = read_lock()
if not lock or lock.owner ~= ARGV[1] or (ARGV[2] ~= '' and lock.attempt ~= ARGV[2]) then return 0 end
redis.call('DEL', KEYS[1])
redis.call('PUBLISH', ARGV[4], '')
return 1
