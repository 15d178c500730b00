-- vote, claim and join: asks one node for its vote on up to 16 locks. Each vote is a step of its own.
--
-- vote: for the lock and a number.  claim: for a number, on a lock that the owner has here.
-- join: for the lock and number of a grant that a majority has given (ADR 0017).
--
-- 1. A node without a valid birth mark of its present run has no vote (ADR 0016).
-- 2. Refuse a ttl longer than the gate, and an owner or attempt with a tombstone.
-- 3. Another owner or another program has the lock: say who.
-- 4. The same owner asks again: the same number, for the newest attempt.
-- 5. A register that is not of leasehold: refuse. The numbers that were accepted here are lost, so this node cannot vote.
-- 6. Accept the proposal, or the next number above all that were accepted here; store it in the register and in the
--    lock.
--
-- The stored values are as in node.lua. This script does without its functions and reads with one MGET, because it is what
-- an acquire costs each node. MGET takes a key of another type for a missing one: so a missing lock is written with NX,
-- and a missing register is believed only if it does not exist.
--
-- KEYS  1 the birth mark; then for each vote: owner, register, the tombstone of the owner, the tombstone of the attempt
-- ARGV  1 the run of this server; then for each vote: vote, claim or join; owner; attempt; ttl ms; proposal; who; note, after
--       an n, empty if there is none
-- Reply the clock in microseconds, then for each vote one of
--       yours, number, remaining ms
--       held, number, held for microseconds, remaining ms, attempt, who, note after an n
--       foreign, type, hash, remaining ms or -1: the lock of another program
--       free: claim, and the owner has no lock here
--       buried: there is a tombstone
--       far: the proposal is too far from the clock
--       long, the gate in ms: no ttl may be longer
--       novote
--       0: it failed among others, and nothing was written for it: it must be sent alone, to fail with its error
-- Error CORRUPT and a text: the register is not of leasehold

local call = redis.call
local TOKEN_END = 9007199254740992 -- 2^53: above, Lua's numbers are no longer exact
local SKEW_MAX_US, RETENTION_MS = 600000000, 7200000 -- as in leasehold_core::quorum_node
local NO_EXPIRY = 31536000000 -- as in node.lua

local values = call('MGET', unpack(KEYS))
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
local now_text = string.format('%.0f', now)
local gate, run, standing = string.match(values[1] or '', '^v1|%x*|%d+|(%d+)|([^|]*)|[01]|([%a:%d]+)$')
local has_vote = standing == 'voting' and run == ARGV[1]

local function remaining_ms(key)
  local ms = call('PTTL', key)
  return ms >= 0 and ms or NO_EXPIRY
end

-- As describe_foreign in node.lua. `value` is nil for a key of another type.
local function foreign(key, value)
  value = value or redis.pcall('DUMP', key)
  local hash = type(value) == 'string' and string.sub(redis.sha1hex(value), 1, 16) or '0000000000000000'
  return { 'foreign', call('TYPE', key).ok, hash, call('PTTL', key) }
end

local function vote(number)
  local k, a = 4 * number - 3, 7 * number - 6
  local lock_key, register_key = KEYS[k + 1], KEYS[k + 2]
  local verb, owner, attempt, ttl = ARGV[a + 1], ARGV[a + 2], ARGV[a + 3], ARGV[a + 4]
  if not has_vote then return { 'novote' } end
  if tonumber(ttl) > tonumber(gate) then return { 'long', tonumber(gate) } end
  if values[k + 3] or values[k + 4] then return { 'buried' } end

  -- The lock, if there is one: owner, number, since, attempt, length of who, who and note.
  local lock, held_number, since, held_attempt, length, rest = values[k + 1]
  if lock then
    lock, held_number, since, held_attempt, length, rest = string.match(lock, '^(%x+)|(%d+)|(%d+)|x(%x+)|(%d+)|(.*)$')
    local token = tonumber(held_number or 0)
    if token < 1 or token >= TOKEN_END then return foreign(lock_key, values[k + 1]) end
    if lock ~= owner then
      local ms = remaining_ms(lock_key)
      local held_for = string.format('%.0f', math.max(0, now - since))
      return { 'held', held_number, held_for, ms, held_attempt, string.sub(rest, 1, length), string.sub(rest, length + 1) }
    end
    -- A lock belongs to the newest attempt of its owner: if an earlier attempt is executed late and then undone, the lock
    -- must stay. Attempts are texts of one length, so they can be compared as texts.
    if held_attempt > attempt then attempt = held_attempt end
  elseif verb == 'claim' then
    if call('EXISTS', lock_key) == 1 then return foreign(lock_key) end
    return { 'free' }
  end

  -- Writes a lock that the owner has already, and returns its remaining time.
  local function rewrite(new_number)
    local ms = remaining_ms(lock_key)
    if new_number ~= held_number or attempt ~= held_attempt then
      call('SET', lock_key, owner .. '|' .. new_number .. '|' .. since .. '|x' .. attempt .. '|' .. length .. '|' .. rest,
        'PX', string.format('%.0f', math.max(1, ms)))
    end
    return ms
  end

  -- The same claim asks again: the same number, with the remaining time.
  if lock and verb ~= 'claim' then
    local same = verb == 'join' and ARGV[a + 5] or held_number
    return { 'yours', same, rewrite(same) }
  end

  local text, kept_ms = ARGV[a + 5], nil
  if verb ~= 'join' then
    local register = values[k + 2]
    local last, last_owner = string.match(register or '', '^(%d+)|(%x*)$')
    if not register and call('EXISTS', register_key) == 1 then call('GET', register_key) end
    if register and not last then
      -- As corrupt_register in node.lua.
      local found = string.gsub(string.sub(register, 1, 40), '[^%w%p ]', '?')
      return redis.error_reply('CORRUPT key ' .. register_key .. " is corrupt: expected number|owner, found '" .. found .. "'")
    end
    local proposal = tonumber(ARGV[a + 5])
    last = tonumber(last or 0)
    if math.abs(proposal - now) > SKEW_MAX_US and (last == 0 or proposal > last + SKEW_MAX_US) then
      return { 'far' }
    end
    -- Above every number that was accepted here. If the owner has the lock and the last number, that number is enough.
    local accepted = math.max(proposal, (lock and last_owner == owner) and last or last + 1)
    if accepted >= TOKEN_END then return { 'far' } end
    text = string.format('%.0f', accepted)
    -- A number ahead of the clock must be remembered for longer.
    kept_ms = RETENTION_MS + math.max(0, math.ceil((accepted - now) / 1000))
  end

  local remaining = ttl
  if lock then
    remaining = rewrite(text)
  elseif not call('SET', lock_key,
    owner .. '|' .. text .. '|' .. now_text .. '|x' .. attempt .. '|' .. #ARGV[a + 6] .. '|' .. ARGV[a + 6] .. ARGV[a + 7],
    'NX', 'PX', ttl)
  then
    return foreign(lock_key) -- the key has another type
  end
  if kept_ms then call('SET', register_key, text .. '|' .. owner, 'PX', string.format('%.0f', kept_ms)) end
  return { 'yours', text, tonumber(remaining) }
end

local count = (#KEYS - 1) / 4
if count == 1 then
  local reply = vote(1)
  return reply.err and reply or { now_text, reply }
end
local replies, seen = { now_text }, {}
for number = 1, count do
  local k = 4 * number - 3
  -- An earlier vote of this call may have written the keys of this resource.
  if seen[KEYS[k + 1]] then
    local again = call('MGET', KEYS[k + 1], KEYS[k + 2], KEYS[k + 3], KEYS[k + 4])
    for offset = 1, 4 do values[k + offset] = again[offset] end
  end
  seen[KEYS[k + 1]] = true
  local succeeded, reply = pcall(vote, number)
  replies[number + 1] = succeeded and not reply.err and reply or 0
end
return replies
