-- acquire, the plain case, for one claim or up to 16: 1 of 1, without a note and a predecessor, where nothing waits and
-- nothing shares. Put after plain_reads.lua. ADR 0038.
--
-- A claim that is not plain here gets the reply 0, and nothing was done for it: the client calls acquire.lua. This script
-- never refuses a claim, and answers as acquire.lua would: a test compares both. It has no functions of its own: creating
-- one takes as long as a command.
--
-- KEYS  for each claim: owner, fence, state, the tombstone of the owner
-- ARGV  1 the lead of the epoch in microseconds  2 a letter for each claim: q if it queues, l if it leaves when blocked
--       then for each claim: owner, ttl ms, who, floor or 0
-- Reply its token, if it is granted and lasts the ttl
--       granted, token, remaining ms, how far the token is ahead of the clock in microseconds
--       blocked, 0, 0, changes in ms, -1, cursor, [holder], empty: only for a claim that leaves
--       0: not plain
--       For several claims (each_claim.lua) such a reply for each.

local k = 4 * number
local owner_key, fence_key, owner, ttl = KEYS[k - 3], KEYS[k - 2], ARGV[k - 1], ARGV[k]
local held, fence = values[k - 3], values[k - 2]
if values[k - 1] or values[k] then return 0 end
-- MGET takes a key of another type for a missing one.
if fence then
  if string.find(fence, '%D') or fence == '' then return 0 end
elseif call('EXISTS', fence_key) == 1 then
  return 0
end
-- As in acquire.lua. A floor more than a day ahead, or a token at 2^53, is left to that script.
local token, floor = clock_us, tonumber(ARGV[k + 2])
if floor > clock_us + 86400000000 then return 0 end
if floor >= token then token = floor + 1 end
if fence and fence + 0 >= token then token = fence + 1 end
if token >= 9007199254740992 then return 0 end

if not held then
  local text, kept_ms = now_text, 7200000
  if token ~= now_us then
    text = string.format('%.0f', token)
    -- A token ahead of the clock must be remembered for longer, or the next one could be lower.
    kept_ms = kept_ms + math.max(0, math.ceil((token - now_us) / 1000))
  end
  -- NX: a key of another type is a foreign lock.
  if not call('SET', owner_key, owner .. '|' .. text .. '|' .. now_text .. '|0||' .. ARGV[k + 1], 'NX', 'PX', ttl) then
    return 0
  end
  call('SET', fence_key, text, 'PX', kept_ms)
  if token > clock_us then return { 'granted', text, tonumber(ttl), token - clock_us } end
  return text
end

-- It is held: answer its owner, and a claim that leaves. The empty field is the marks: a holder with marks is not plain.
local id, newest, since, handovers, who = string.match(held, '^(%x+)|(%d+)|(%d+)|(%d+)||(.*)$')
local leaves = string.sub(ARGV[2], number, number) == 'l'
if not id or #id ~= 32 or tonumber(newest) >= 9007199254740991 or not (leaves or id == owner) then return 0 end
local ms = call('PTTL', owner_key)
if ms < 0 then return 0 end
-- As `ends_of` and `left` in resource.lua.
ms = math.max(0, math.floor(math.floor(now_us / 1000) + ms - now_us / 1000))
if id == owner then return { 'granted', newest, ms, 0 } end
local holder = { who, newest, 1, math.max(0, now_us - since), ms, false, tonumber(handovers), '', -1, false, false }
-- As `cursor` in resource.lua, without `state`.
local cursor = string.sub(redis.sha1hex((fence or '') .. '|' .. newest .. '|'), 1, 12)
return { 'blocked', 0, 0, ms, -1, cursor, { holder }, {} }
