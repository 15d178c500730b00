-- release, the plain case: where nobody waits and nobody shares. Put before resource.lua, with the same keys, arguments
-- and replies as release.lua, and the id of the request as ARGV 7, which it returns after the reply; whatever is not plain
-- goes on there.
--
-- Compare and delete, on the owner key alone.

if ARGV[6] == '0' and redis.call('EXISTS', KEYS[7]) == 0 then
  local value = redis.pcall('GET', KEYS[1])
  local ours = type(value) == 'string' and string.sub(value, 1, 33) == ARGV[4] .. '|'
  local marks = ours and string.match(value, '^%d+|%d+|%d+|(%a*)|', 34)
  -- What is kept closed is nobody's.
  ours = marks and not string.find(marks, 'k', 1, true)
  if ours then redis.call('DEL', KEYS[1]) end
  if tonumber(ARGV[5]) >= 0 then redis.call('SET', KEYS[9], 'b', 'PX', math.max(1, ARGV[5])) end
  return { ours and 1 or 0, ARGV[7] }
end
