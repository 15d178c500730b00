-- vote, claim and join: asks one node for its vote.
--
-- vote: for the lock and a number.  claim: for a number, on a lock that the owner has here.
-- join: for the lock and number of a grant that a majority has given (ADR 0017).
--
-- 1. A node without a valid birth mark of its present run has no vote (ADR 0016).
-- 2. Refuse a ttl longer than the gate, and an owner or attempt with a tombstone.
-- 3. Another owner has the lock: say who.
-- 4. The same owner asks again: the same number, for the newest attempt.
-- 5. Accept the proposal, or the next number above all that were accepted here; store it in the register and in the
--    lock.
--
-- The stored values are as in node.lua. This script does without its functions and reads with one MGET, because it is what
-- an acquire costs each node. MGET takes a key of another type for a missing one: so a missing lock is written with NX,
-- and a missing register is believed only if it does not exist.
--
-- KEYS  1 owner  2 register  3 the birth mark  4 the tombstone of the owner  5 the tombstone of the attempt
-- ARGV  1 vote, claim or join  2 owner  3 attempt  4 ttl ms  5 proposal  6 who  7 note, after an n; empty if none
--       8 the run of this server
-- Reply the clock in microseconds, then one of
--       yours, number, remaining ms
--       held, number, held for microseconds, remaining ms, attempt, who, note after an n
--       free: claim, and the owner has no lock here
--       buried: there is a tombstone
--       far: the proposal is too far from the clock
--       long, the gate in ms: no ttl may be longer
--       novote

local call, verb, owner, attempt = redis.call, ARGV[1], ARGV[2], ARGV[3]
local TOKEN_END = 9007199254740992 -- 2^53: above, Lua's numbers are no longer exact
local SKEW_MAX_US, RETENTION_MS = 600000000, 7200000 -- as in leasehold_core::quorum_node
local NO_EXPIRY = 31536000000 -- as in node.lua

local value = call('MGET', KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5])
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
local now_text = string.format('%.0f', now)

local gate, run, standing = string.match(value[3] or '', '^v1|%x*|%d+|(%d+)|([^|]*)|[01]|([%a:%d]+)$')
if standing ~= 'voting' or run ~= ARGV[8] then return { now_text, 'novote' } end
if tonumber(ARGV[4]) > tonumber(gate) then return { now_text, 'long', tonumber(gate) } end
if value[4] or value[5] then return { now_text, 'buried' } end

-- The lock, if there is one: owner, number, since, attempt, length of who, who and note.
local lock, number, since, held_attempt, length, rest = value[1]
if lock then
  lock, number, since, held_attempt, length, rest = string.match(lock, '^(%x+)|(%d+)|(%d+)|x(%x+)|(%d+)|(.*)$')
  if lock ~= owner then
    local ms = call('PTTL', KEYS[1])
    ms = ms >= 0 and ms or NO_EXPIRY
    if not lock then return { now_text, 'held', '1', now_text, ms, '0', 'not leasehold', '' } end
    local held_for = string.format('%.0f', math.max(0, now - since))
    return { now_text, 'held', number, held_for, ms, held_attempt, string.sub(rest, 1, length), string.sub(rest, length + 1) }
  end
  -- A lock belongs to the newest attempt of its owner: if an earlier attempt is executed late and then undone, the lock
  -- must stay. Attempts are texts of one length, so they can be compared as texts.
  if held_attempt > attempt then attempt = held_attempt end
elseif verb == 'claim' then
  call('GET', KEYS[1]) -- fails if the key has another type
  return { now_text, 'free' }
end

-- Writes a lock that the owner has already, and returns its remaining time.
local function rewrite(new_number)
  local ms = call('PTTL', KEYS[1])
  ms = ms >= 0 and ms or NO_EXPIRY
  if new_number ~= number or attempt ~= held_attempt then
    call('SET', KEYS[1], owner .. '|' .. new_number .. '|' .. since .. '|x' .. attempt .. '|' .. length .. '|' .. rest, 'PX',
      string.format('%.0f', math.max(1, ms)))
  end
  return ms
end

-- The same claim asks again: the same number, with the remaining time.
if lock and verb ~= 'claim' then
  local same = verb == 'join' and ARGV[5] or number
  return { now_text, 'yours', same, rewrite(same) }
end

local text, kept_ms = ARGV[5], nil
if verb ~= 'join' then
  local last, last_owner = string.match(value[2] or '', '^(%d+)|(%x*)$')
  if not value[2] and call('EXISTS', KEYS[2]) == 1 then call('GET', KEYS[2]) end
  local proposal = tonumber(ARGV[5])
  last = tonumber(last or 0)
  if math.abs(proposal - now) > SKEW_MAX_US and (last == 0 or proposal > last + SKEW_MAX_US) then
    return { now_text, 'far' }
  end
  -- Above every number that was accepted here. If the owner has the lock and the last number, that number is enough.
  local accepted = math.max(proposal, (lock and last_owner == owner) and last or last + 1)
  if accepted >= TOKEN_END then return { now_text, 'far' } end
  text = string.format('%.0f', accepted)
  -- A number ahead of the clock must be remembered for longer.
  kept_ms = RETENTION_MS + math.max(0, math.ceil((accepted - now) / 1000))
end

local remaining = ARGV[4]
if lock then
  remaining = rewrite(text)
elseif not call('SET', KEYS[1],
  owner .. '|' .. text .. '|' .. now_text .. '|x' .. attempt .. '|' .. #ARGV[6] .. '|' .. ARGV[6] .. ARGV[7], 'NX', 'PX', ARGV[4])
then
  call('GET', KEYS[1]) -- fails, because the key has another type
end
if kept_ms then call('SET', KEYS[2], text .. '|' .. owner, 'PX', string.format('%.0f', kept_ms)) end
return { now_text, 'yours', text, tonumber(remaining) }
