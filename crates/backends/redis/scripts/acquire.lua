-- acquire: one round trip, one step. Put after resource.lua.
--
-- 1. Compute the token of a grant; refuse a fence that is no number and a floor that no honest client has seen. Note that
--    the owner was heard, and pass over waiters that were called and did not answer.
-- 2. A tombstone of the owner: cancelled.
-- 3. The owner holds a lease already: the same grant, with what remains of it.
-- 4. Another capacity than the holders and waiters have: mismatch.
-- 5. A predecessor: take over its lease, or its place in the queue.
-- 6. The claim fits behind the waiters before it: grant. Otherwise queue it, if it wants that.
-- 7. Call the waiters that can be granted now.
--
-- KEYS  1-9 as in resource.lua; 10 the tombstone of the predecessor (any key of the resource if there is none)
-- ARGV  3 listener  4 owner  5 weight  6 capacity  7 ttl ms  8 place ttl ms  9 queue: 1 or 0  10 who
--       11 note, after an n; empty if there is none  12 floor or 0  13 the lead of the epoch in microseconds
--       14 the owner of the predecessor, or empty  15 ttl of its tombstone in ms, or -1  16 the longest queue
--       17 the ClientId of the claim, or empty
-- Reply granted, token, remaining ms, how far the token is ahead of the clock in microseconds
--       blocked, queued, ahead, changes in ms or -1, pause: ms left or -1, cursor, [holder…], foreign lock: type, hash,
--         ms or -1; or empty
--       buried: the claim was cancelled
--       mismatch, capacity
-- Error LIMIT: no place is left; FLOOR and a floor more than a year ahead of the clock; CORRUPT and a text. No
--       effect.

local listener, owner, weight, of = ARGV[3], ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6])
local ttl, place_ttl, queue = tonumber(ARGV[7]), tonumber(ARGV[8]), ARGV[9] == '1'
local predecessor, tombstone_ms = ARGV[14], tonumber(ARGV[15])
local YEAR, RETENTION = 366 * 86400 * 1000000, 2 * 3600 * 1000
local HANDOVERS_MAX = 16
local QUEUE_MAX = tonumber(ARGV[16])

-- The rank of the claim in the queue; nil if it has no place, or if it is not known.
local rank
local clock_us = now_us + tonumber(ARGV[13])

-- MGET takes a key of another type for a missing one: GET fails for it.
if not last then last = redis.call('GET', FENCE) end

-- The token of a grant.
if last and not string.match(last, '^%d+$') then
  -- Only printable ASCII: a reply that is not UTF-8 would break the connection.
  local found = string.gsub(string.sub(last, 1, 40), '[^%w%p ]', '?')
  return redis.error_reply('CORRUPT key ' .. FENCE .. " is corrupt: expected a number, found '" .. found .. "'")
end
local floor = tonumber(ARGV[12])
local newest = math.max(tonumber(last or 0), holder and holder.token or 0)
-- As FencingToken::mint: no honest client has seen such a token, unless it was given out here.
if floor > newest and floor > clock_us + YEAR then return redis.error_reply('FLOOR ' .. int(floor)) end
local token = math.max(newest + 1, clock_us, floor + 1)
if token >= TOKEN_END then
  return redis.error_reply('CORRUPT no fencing token is left: they end below 2^53, and key ' .. FENCE .. ' has '
    .. int(newest) .. '; use another resource, or delete the key if nothing checks its tokens')
end

remove_expired()
note_heard(owner)
pass_over_silent(owner)

-- Grants the claim until `ends`. `inherited` is what an operator has asked of the predecessor, if that still applies.
local function grant(ends, handovers, inherited)
  local lease = {
    owner = owner, weight = weight, token = token, since = now_us, handovers = handovers, marks = '', who = ARGV[10],
  }
  if inherited and inherited.evicting then lease.marks = 'e' end
  if capacity ~= of then capacity, dirty = of, true end
  if weight == 1 and of == 1 then
    lease.in_owner_key, holder = true, lease
  else
    if share_count == 0 then fresh = true end
    redis.call('ZADD', SHARES, ends, owner)
    held, share_count, lease.ends = held + weight, share_count + 1, ends
    note_end(ends)
    note_change()
  end
  if ARGV[11] ~= '' then add_extra(lease, owner .. ':note', string.sub(ARGV[11], 2)) end
  if inherited and inherited.asked then
    add_extra(lease, owner .. ':asked', inherited.asked, owner .. ':by', inherited.by, owner .. ':why', inherited.why)
  end
  store(lease, lease.in_owner_key and ends)
  last = int(token)
  -- A token ahead of the clock must be remembered for longer, or the next one could be lower.
  redis.call('SET', FENCE, last, 'PX', RETENTION + math.max(0, math.ceil((token - now_us) / 1000)))
  changed = true
  return { 'granted', last, left(ends), math.max(0, token - clock_us) }
end

-- Gives the claim a place with this arrival number; returns false if it has one.
local function join_queue(arrival, since)
  local count = queue_length()
  if redis.call('ZADD', LINE, 'NX', int(arrival), owner) == 0 then return false end
  local ends = after(place_ttl)
  redis.call('ZADD', PLACES, ends, owner)
  redis.call('HSET', CLAIMS, owner,
    int(weight) .. '|' .. int(since) .. '|' .. listener .. '|' .. ARGV[17] .. '|' .. int(now_us) .. '||' .. ARGV[10])
  if count == 0 then fresh = true end
  queue_count, first_waiter = count + 1, nil
  note_end(ends)
  note_change()
  return true
end

-- Defined only if there is a predecessor: creating a function takes time, too.
local release_predecessor, take_over
if predecessor ~= '' then
  -- Releases the predecessor. With `replaced` this claim writes the owner key next.
  function release_predecessor(replaced)
    local lease = lease_of(predecessor)
    if lease and not has(lease, 'k') then end_lease(lease, replaced) else leave_queue(predecessor, true) end
    if tombstone_ms >= 0 then write_tombstone(KEYS[10], 'b', tombstone_ms) end
  end

  -- Takes over the lease of the predecessor, if it is large enough; returns nil if that is refused.
  local function take_over_lease(lease)
    local downgrade = weight < lease.weight
    -- While others wait, a lease is handed over only so often, and not at all if it is paused or evicted.
    local too_often = lease.handovers >= HANDOVERS_MAX and live_count() > 0
    local refused = not downgrade and (pause or has(lease, 'e') or too_often)
    local freed_before = freed
    -- With a downgrade the same work goes on with less, so a request to finish or an eviction stays in force.
    local inherited
    if downgrade then
      local o = predecessor
      local more = redis.call('HMGET', CLAIMS, o .. ':asked', o .. ':by', o .. ':why')
      inherited = { evicting = has(lease, 'e'), asked = more[1], by = more[2], why = more[3] }
    end
    release_predecessor(not refused and of == 1)
    if refused then return nil end
    -- The lease passes on without a gap, so no waiter is woken for it, unless a downgrade leaves capacity.
    if not downgrade then freed = freed_before end
    leave_queue(owner)
    if downgrade then return grant(ends_of(lease), lease.handovers, inherited) end
    return grant(after(ttl), lease.handovers + 1)
  end

  -- Takes over from the predecessor: returns a grant if it held a lease, and nil if it had a place in the queue or
  -- nothing.
  function take_over()
    local lease = lease_of(predecessor)
    if lease and not has(lease, 'k') and lease.weight >= weight then return take_over_lease(lease) end
    local arrival = arrival_of(predecessor)
    if arrival then
      look_is_sure = true
      local since = string.match(redis.call('HGET', CLAIMS, predecessor) or '', '^%d+|(%d+)|') or now_us
      leave_queue(predecessor, true)
      if queue then join_queue(arrival, tonumber(since)) end
    end
    release_predecessor()
    return nil
  end
end

local function queue_is_full()
  return redis.error_reply('LIMIT the queue of this resource is full: ' .. queue_length() .. ' claims wait')
end

-- Keeps the place of the claim in the queue for the place ttl, or gives it the last one; returns an error if the queue is
-- full.
local function stay_in_queue()
  local count = queue_length()
  if count >= QUEUE_MAX and not arrival_of(owner) then return queue_is_full() end
  if join_queue(arrivals, now_us) then
    rank, arrivals = count - silent, arrivals + 1
  else
    local ends = after(place_ttl)
    -- GT: a place is never shortened.
    redis.call('ZADD', PLACES, 'XX', 'GT', ends, owner)
    update_place(owner, listener, true)
    if ends > keys_until then
      keep_until(ends)
      dirty = true
    end
  end
end

local function blocked()
  if queue and not rank then rank = redis.call('ZRANK', LINE, owner) or nil end
  local ahead = rank or live_count()
  local changes_at = pause
  local function sooner(ends) if ends < (changes_at or math.huge) then changes_at = ends end end
  local leases = {}
  if share_count > 0 then
    for _, id in ipairs(redis.call('ZRANGE', SHARES, 0, 2)) do leases[#leases + 1] = share_of(id) end
  end
  local foreign = describe_foreign()
  if holder and not holder.foreign then leases[#leases + 1] = holder end
  if foreign[1] and foreign[3] >= 0 then sooner(math.floor(now) + foreign[3]) end
  table.sort(leases, function(a, b) return ends_of(a) < ends_of(b) end)
  local holders = {}
  for i = 1, math.min(3, #leases) do
    holders[i] = describe(leases[i])
    sooner(ends_of(leases[i]))
  end
  -- For a waiter beyond the window, the end of one place changes nothing.
  if ahead <= WINDOW and queue_length() > 0 then
    sooner(first_end(PLACES))
    -- A called waiter may become silent. Mostly it has answered long ago, and only `look` was not updated: that is so if
    -- there is no room, unless `look` is sure.
    if look and (taken() < capacity or silent > 0 or look_is_sure) then sooner(math.ceil(look / 1000)) end
  end
  return {
    'blocked', rank and 1 or 0, ahead, changes_at and left(changes_at) or -1, pause and left(pause) or -1, cursor(), holders,
    foreign,
  }
end

-- Whether the claim fits behind the waiters before it. Sets `rank` if it has a place.
local function can_be_granted()
  if pause or taken() + weight > of then return false end
  if not state_exists then return true end
  -- Two members, because then it is known whether others wait behind a claim at the head.
  local head = first_waiters(2)
  if head[1] == owner then
    rank, others_wait = 0, head[2] ~= nil
    if not others_wait then queue_count = 1 + silent end
    return true
  end
  if not head[1] then
    queue_count, dirty = silent, dirty or silent == 0
    return true
  end
  first_waiter = head[1]
  rank = redis.call('ZRANK', LINE, owner) or nil
  return fits(rank or live_count(), weight, of)
end

-- The verdict, or nil if the claim is blocked.
local function decide()
  if tombstone then
    -- This owner has a tombstone, so refuse it. Still release its predecessor: that was part of the same request.
    if predecessor ~= '' then release_predecessor() end
    return { 'buried' }
  end
  local lease = lease_of(owner)
  -- The owner of a kept lease has released it, so this is a late request.
  if lease and has(lease, 'k') then return { 'buried' } end
  if lease then return { 'granted', int(lease.token), left(ends_of(lease)), 0 } end
  if capacity ~= of and ((holder and not holder.foreign) or share_count > 0 or not queue_is_empty()) then
    leave_queue(owner)
    return { 'mismatch', capacity }
  end
  if predecessor ~= '' then
    if queue and state_exists and queue_length() >= QUEUE_MAX and not arrival_of(owner) then return queue_is_full() end
    local granted = take_over()
    if granted then return granted end
  end
  if capacity ~= of then capacity, dirty = of, dirty or state_exists end
  if can_be_granted() then
    if rank then
      -- With another weight than before, the claim leaves room to others, or takes it from those that were called.
      if of > 1 and weight ~= weight_in(redis.call('HGET', CLAIMS, owner)) then looked, look_is_sure = true, true end
      remove_place(owner)
    end
    local granted = grant(after(ttl), 0)
    granted.how = rank and 'from queue' or 'granted'
    return granted
  end
  if queue then return stay_in_queue() end
  leave_queue(owner)
  rank = nil
  return nil
end

local verdict = decide()
finish(verdict and verdict.how, owner)
return verdict or blocked()
