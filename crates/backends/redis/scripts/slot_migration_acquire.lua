-- acquire while a cluster moves the slot: 1 of 1, on the owner key alone. The other keys may be on another node. ADR
-- 0015.
--
-- KEYS  1 owner
-- ARGV  1 owner  2 ttl ms  3 who  4 floor or 0  5 the lead of the epoch in microseconds  6 the last token, or 0
-- Reply as of acquire.lua; a grant has one more field: 1 if it is new, 0 if the owner held it before
-- Error as of acquire.lua

local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]
local value = redis.pcall('GET', KEYS[1])
local is_other_type = type(value) == 'table'

if value then
  local ms = redis.call('PTTL', KEYS[1])
  local id, token, since, handovers, marks, who
  if not is_other_type then
    id, token, since, handovers, marks, who = string.match(value, '^(%x+)|(%d+)|(%d+)|(%d+)|(%a*)|(.*)$')
  end
  local is_lease = id and #id == 32
  if is_lease and id == ARGV[1] then
    -- The owner of a kept lease has released it, so this is a late request.
    if string.find(marks, 'k', 1, true) then return { 'buried' } end
    return { 'granted', token, math.max(0, ms), 0, 0 }
  end
  if is_lease then
    -- The fields of `describe` in resource.lua.
    local holder = { who, token, 1, math.max(0, now_us - since), ms, false, tonumber(handovers), marks, -1, false, false }
    return { 'blocked', 0, 0, ms, -1, string.sub(redis.sha1hex(value), 1, 12), { holder }, {} }
  end
  -- Another program holds the resource: as foreign_hash and describe_foreign in resource.lua.
  local content = is_other_type and redis.pcall('DUMP', KEYS[1]) or value
  local hash = type(content) == 'string' and string.sub(redis.sha1hex(content), 1, 16) or '0000000000000000'
  local foreign = { redis.call('TYPE', KEYS[1]).ok, hash, ms }
  return { 'blocked', 0, 0, ms, -1, string.sub(hash, 1, 12), {}, foreign }
end

-- As next_token in acquire.lua.
local clock_us, floor, last = now_us + ARGV[5], tonumber(ARGV[4]), tonumber(ARGV[6])
if floor > last and floor > clock_us + 366 * 86400 * 1000000 then
  return redis.error_reply('FLOOR ' .. string.format('%.0f', floor))
end
local token = math.max(clock_us, floor + 1, last + 1)
if token >= 9007199254740992 then
  return redis.error_reply('CORRUPT no fencing token is left: they end below 2^53')
end
local text = string.format('%.0f', token)
redis.call('SET', KEYS[1], ARGV[1] .. '|' .. text .. '|' .. string.format('%.0f', now_us) .. '|0||' .. ARGV[3], 'PX',
  math.max(1, ARGV[2]))
return { 'granted', text, tonumber(ARGV[2]), math.max(0, token - clock_us), 1 }
