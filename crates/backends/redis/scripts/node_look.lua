-- look: one resource, as this node has it. Put after node.lua.
--
-- KEYS  1 owner  2 register
-- ARGV  none
-- Reply the clock in microseconds, the last number or nil; and if the lock is held: held, number, held for microseconds,
--       remaining ms, attempt, who, note after an n; or foreign, type, hash, remaining ms or -1
-- Error CORRUPT and a text: the register has another type, or is not of leasehold

local now, lock = clock(), read_lock()
local register = redis.pcall('GET', KEYS[2])
if type(register) == 'table' then
  local found = redis.call('TYPE', KEYS[2]).ok
  if found == 'string' then return register end
  return redis.error_reply('CORRUPT key ' .. KEYS[2] .. ' is a ' .. found
    .. ', not a string: leasehold did not write it; rename or delete it')
end
local last = string.match(register or '', '^(%d+)|%x*$')
if register and not last then return corrupt_register(KEYS[2], register) end
if not lock then return { int(now), last or false } end
if lock.owner == '' then return { int(now), last or false, describe_foreign(lock) } end
return { int(now), last or false, 'held', describe(lock, now) }
