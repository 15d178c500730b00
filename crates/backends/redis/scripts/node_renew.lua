-- renew: prolongs the lock of an owner. Never shortens it, and never brings it back. Put after node.lua.
--
-- KEYS  1 owner  2 the tombstone of the owner  3 the birth mark
-- ARGV  1 owner  2 ttl ms  3 note, after an n; empty to leave it as it is  4 the channel of the resource
-- Reply kept, number, remaining ms
--       gone, 1 if the owner has a tombstone
--       long, the gate in ms: no ttl may be longer

local lock, ttl = read_lock(), tonumber(ARGV[2])
if not lock or lock.owner ~= ARGV[1] then return { 'gone', redis.call('EXISTS', KEYS[2]) } end
local mark = parse_mark(get(KEYS[3]))
if mark and ttl > mark.gate then return { 'long', mark.gate } end
local remaining = math.max(left(), ttl)
if ARGV[3] ~= '' then
  lock.note = ARGV[3]
  write_lock(lock, remaining)
  redis.call('PUBLISH', ARGV[4], '')
else
  redis.call('PEXPIRE', KEYS[1], int(math.max(1, remaining)))
end
return { 'kept', lock.number, remaining }
