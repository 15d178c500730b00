-- release, the plain case, for up to 16 leases: as release_plain.lua, which is shorter for one. ADR 0038.
--
-- KEYS  for each lease: owner, state
-- ARGV  the owner of each lease
-- Reply for each: 1 it was held; 0 it was not; 2 not plain, and nothing was done: release.lua must take a closer look

local values = redis.call('MGET', unpack(KEYS))
local replies, freed, is_freed = {}, {}, {}
for number = 1, #KEYS / 2 do
  local key, value = KEYS[2 * number - 1], values[2 * number - 1]
  if values[2 * number] then
    replies[number] = 2
  elseif not value or is_freed[key] or string.sub(value, 1, 33) ~= ARGV[number] .. '|' then
    replies[number] = 0
  elseif string.find(value, '^%d+|%d+|%d+||', 34) then
    replies[number], is_freed[key], freed[#freed + 1] = 1, true, key
  else
    -- A holder with marks: it may be kept, and was released before.
    replies[number] = 2
  end
end
if freed[1] then redis.call('DEL', unpack(freed)) end
return replies
