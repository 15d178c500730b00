-- undo: gives up to 16 locks back, and wakes their waiters. ADR 0017. The stored values are as in node.lua.
--
-- KEYS  the owner key of each lock; with a tombstone one lock, and then the tombstone to write, of the attempt or of the owner
-- ARGV  1 ttl of the tombstone in ms, or -1
--       then for each lock: owner; attempt, or empty for any attempt of the owner; the channel of the resource
-- Reply for each lock: 1 it was given back; 0 it was not held so
--
-- MGET takes a key of another type for a missing one: that is the lock of another program, and stays.

local call, count = redis.call, #KEYS
if ARGV[1] ~= '-1' then
  count = 1
  call('SET', KEYS[2], 'b', 'PX', math.max(1, ARGV[1]))
end
local values = call('MGET', unpack(KEYS, 1, count))
local replies, freed = {}, {}
for number = 1, count do
  local key, value, a = KEYS[number], values[number], 3 * number - 2
  local owner, attempt = string.match(value or '', '^(%x+)|%d+|%d+|x(%x+)|')
  if freed[key] or owner ~= ARGV[a + 1] or (ARGV[a + 2] ~= '' and attempt ~= ARGV[a + 2]) then
    replies[number] = 0
  else
    call('DEL', key)
    call('PUBLISH', ARGV[a + 3], '')
    replies[number], freed[key] = 1, true
  end
end
return replies
