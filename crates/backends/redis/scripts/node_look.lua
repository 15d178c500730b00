-- look: one resource, as this node has it. Put after node.lua.
--
-- KEYS  1 owner  2 register
-- ARGV  none
-- Reply the clock in microseconds, the last number or nil; and if the lock is held: number, held for microseconds,
--       remaining ms, attempt, who, note after an n

local now, lock = clock(), read_lock()
local last = string.match(get(KEYS[2]) or '', '^(%d+)|')
if not lock then return { int(now), last or false } end
return { int(now), last or false, describe(lock, now) }
