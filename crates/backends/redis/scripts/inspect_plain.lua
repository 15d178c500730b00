-- inspect of many resources that have a plain holder, or none: what inspect.lua says of them, for less. ADR 0061.
--
-- KEYS  for each resource: owner, fence, state
-- ARGV  none
-- Reply for each resource:
--       who, token, held for microseconds, remaining ms, handovers, marks, value of the fence or nil, cursor
--       1: nothing holds it, waits for it or pauses it
--       0: not plain; inspect.lua must take a closer look

local call = redis.call
local values = call('MGET', unpack(KEYS))
local time = call('TIME')
local now_us = time[1] * 1000000 + time[2]

-- MGET takes a key of another type for a missing one.
local missing = {}
for number, key in ipairs(KEYS) do
  if not values[number] then missing[#missing + 1] = key end
end
local any_other_type = missing[1] and call('EXISTS', unpack(missing)) > 0

local function is_other_type(number) return not values[number] and call('EXISTS', KEYS[number]) == 1 end

local TOKEN_END = 9007199254740992 -- 2^53: above, Lua's numbers are no longer exact
local function is_token(digits)
  return string.find(digits, '^%d+$') and tonumber(digits) >= 1 and tonumber(digits) < TOKEN_END
end

local function read(k)
  local held, fence = values[k], values[k + 1]
  if values[k + 2] or (fence and not is_token(fence)) then return 0 end
  if any_other_type and (is_other_type(k) or is_other_type(k + 1) or is_other_type(k + 2)) then return 0 end
  if not held then return 1 end
  local id, token, since, handovers, marks, who = string.match(held, '^(%x+)|(%d+)|(%d+)|(%d+)|([ek]*)|(.*)$')
  local ms = call('PTTL', KEYS[k])
  if not id or #id ~= 32 or not is_token(token) or ms < 0 then return 0 end
  -- As `left`, `ends_of` and `cursor` in resource.lua.
  ms = math.max(0, math.floor(math.floor(now_us / 1000) + ms - now_us / 1000))
  local cursor = string.sub(redis.sha1hex((fence or '') .. '|' .. token .. '|'), 1, 12)
  return { who, token, math.max(0, now_us - since), ms, tonumber(handovers), marks, fence, cursor }
end

local replies = {}
for number = 1, #KEYS / 3 do replies[number] = read(3 * number - 2) end
return replies
