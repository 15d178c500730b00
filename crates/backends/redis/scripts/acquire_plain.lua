-- acquire, the plain case, for up to 16 claims: 1 of 1, without a note and a predecessor, where nothing waits and nothing
-- shares. ADR 0038.
--
-- A claim that is not plain here gets the reply 0, and nothing was done for it: the client calls acquire.lua. So do later
-- claims of that resource in this call, because they must not overtake it. This script never refuses a claim, and answers
-- as acquire.lua would: a test compares both.
--
-- KEYS  for each claim: owner, fence, state, the tombstone of the owner
-- ARGV  1 the lead of the epoch in microseconds  2 a letter for each claim: q if it queues, l if it leaves when blocked
--       then for each claim: owner, ttl ms, who, floor or 0
-- Reply for each claim: its token, if it is granted and lasts the ttl
--       [granted, token, remaining ms, how far the token is ahead of the clock in microseconds]
--       [blocked, 0, 0, changes in ms, 0, cursor, [holder]]: only for a claim that leaves
--       0: not plain

local call, pcall = redis.call, pcall
local time = call('TIME')
local now_us = time[1] * 1000000 + time[2]
local clock_us = now_us + ARGV[1]
local now_text = string.format('%.0f', now_us)
local LEAVES = 108 -- the letter l

-- As `left` in resource.lua for the expiry of a key, which is in ms of the server's clock.
local function left(ms) return math.max(0, math.floor(math.floor(now_us / 1000) + ms - now_us / 1000)) end

-- The resource has a holder: answers the same owner, and a claim that leaves.
local function answer_held(key, value, fence, owner, leaves)
  -- The empty field is the marks: a holder with marks is not plain.
  local id, token, since, handovers, who = string.match(value, '^(%x+)|(%d+)|(%d+)|(%d+)||(.*)$')
  if not id or #id ~= 32 or tonumber(token) >= 9007199254740991 or not (leaves or id == owner) then return 0 end
  local ms = call('PTTL', key)
  if ms < 0 then return 0 end
  ms = left(ms)
  if id == owner then return { 'granted', token, ms, 0 } end
  local holder = { who, token, 1, math.max(0, now_us - since), ms, false, tonumber(handovers), '', -1, false, false }
  -- As `cursor` in resource.lua, without `state`.
  local cursor = string.sub(redis.sha1hex((fence or '') .. '|' .. token .. '|'), 1, 12)
  return { 'blocked', 0, 0, ms, 0, cursor, { holder } }
end

local function acquire(number)
  local k, a = 4 * number, 4 * number
  local owner_key, fence_key, owner = KEYS[k - 3], KEYS[k - 2], ARGV[a - 1]
  local value = call('MGET', owner_key, fence_key, KEYS[k - 1], KEYS[k])
  if value[3] or value[4] then return 0 end
  local fence = value[2]
  if fence then
    if string.find(fence, '%D') or fence == '' then return 0 end
  elseif call('EXISTS', fence_key) == 1 then
    -- MGET takes a key of another type for a missing one.
    return 0
  end
  -- As next_token in acquire.lua. A floor more than a day ahead, or a token at 2^53, is left to that script.
  local token, floor = clock_us, tonumber(ARGV[a + 2])
  if floor > clock_us + 86400000000 then return 0 end
  if floor >= token then token = floor + 1 end
  if fence and fence + 0 >= token then token = fence + 1 end
  if token >= 9007199254740992 then return 0 end
  if value[1] then return answer_held(owner_key, value[1], fence, owner, string.byte(ARGV[2], number) == LEAVES) end
  local text, kept_ms = now_text, 7200000
  if token ~= now_us then
    text = string.format('%.0f', token)
    -- A token ahead of the clock must be remembered for longer, or the next one could be lower.
    kept_ms = kept_ms + math.max(0, math.ceil((token - now_us) / 1000))
  end
  -- NX: a key of another type is a foreign lock.
  if not call('SET', owner_key, owner .. '|' .. text .. '|' .. now_text .. '|0||' .. ARGV[a + 1], 'NX', 'PX', ARGV[a]) then
    return 0
  end
  call('SET', fence_key, text, 'PX', kept_ms)
  if token > clock_us then return { 'granted', text, tonumber(ARGV[a]), token - clock_us } end
  return text
end

local replies, not_plain = {}, {}
for number = 1, #KEYS / 4 do
  local owner_key, reply = KEYS[4 * number - 3], 0
  if not not_plain[owner_key] then
    -- pcall: an error in one claim must not fail the others. acquire.lua finds it again and explains it.
    local succeeded, answer = pcall(acquire, number)
    if succeeded then reply = answer end
  end
  if reply == 0 then not_plain[owner_key] = true end
  replies[number] = reply
end
return replies
