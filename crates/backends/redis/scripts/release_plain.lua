-- release, the plain case: where nothing waits and nothing shares. ADR 0019.
--
-- Put before resource.lua, with the same keys, arguments and replies as release.lua, and the id of the request as ARGV
-- 7, which it returns after the reply. Every other case falls through to release.lua.
--
-- Compares and deletes the owner key. `state` (KEYS 7) exists if there is anything but a plain holder.

if ARGV[6] == '0' and redis.call('EXISTS', KEYS[7]) == 0 then
  local value = redis.pcall('GET', KEYS[1])
  local is_ours = type(value) == 'string' and string.sub(value, 1, 33) == ARGV[4] .. '|'
  local marks = is_ours and string.match(value, '^%d+|%d+|%d+|(%a*)|', 34)
  -- The owner of a kept lease has released it before.
  is_ours = marks and not string.find(marks, 'k', 1, true)
  if is_ours then redis.call('DEL', KEYS[1]) end
  if tonumber(ARGV[5]) >= 0 then redis.call('SET', KEYS[9], 'b', 'PX', math.max(1, ARGV[5])) end
  return { is_ours and 1 or 0, ARGV[7] }
end
