-- acquire: one round trip, one step. Put after resource.lua.
--
-- 1. Compute the token of a grant; refuse a fence that is no number and a floor that no honest client has seen.
-- 2. A tombstone of the owner: cancelled.
-- 3. The owner holds a lease already: the same grant, with what remains of it.
-- 4. Another capacity than the holders and waiters have: mismatch.
-- 5. A predecessor: take over its lease, or its place in the queue.
-- 6. The claim fits behind the waiters before it: grant. Otherwise queue it, if it wants that.
--
-- KEYS  1-9 as in resource.lua; 10 the tombstone of the predecessor (any key of the resource if there is none)
-- ARGV  3 client  4 owner  5 weight  6 capacity  7 ttl ms  8 place ttl ms  9 queue: 1 or 0  10 who
--       11 note, after an n; empty if there is none  12 floor or 0  13 the lead of the epoch in microseconds
--       14 the owner of the predecessor, or empty  15 ttl of its tombstone in ms, or -1  16 the longest queue
-- Reply granted, token, remaining ms, how far the token is ahead of the clock in microseconds
--       blocked, queued, ahead, changes in ms or -1, paused, cursor, [holder…]
--       buried: the claim was cancelled
--       mismatch, capacity
-- Error LIMIT: no token or place is left; FLOOR and a floor more than a year ahead of the clock; CORRUPT and a text. No
--       effect.

local client, owner, weight, of = ARGV[3], ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6])
local ttl, place_ttl, queue = tonumber(ARGV[7]), tonumber(ARGV[8]), ARGV[9] == '1'
local predecessor, tombstone_ms = ARGV[14], tonumber(ARGV[15])
local YEAR, RETENTION = 366 * 86400 * 1000000, 2 * 3600 * 1000
local TOKEN_END = 9007199254740992 -- 2^53: above, Lua's numbers are no longer exact
local HANDOVERS_MAX = 16

local last = redis.call('GET', FENCE)
local clock_us = now_us + tonumber(ARGV[13])

-- The token of a grant, or nil and an error.
local function next_token()
  if last and not string.match(last, '^%d+$') then
    -- Only printable ASCII: a reply that is not UTF-8 would break the connection.
    local found = string.gsub(string.sub(last, 1, 40), '[^%w%p ]', '?')
    return nil, 'CORRUPT key ' .. FENCE .. " is corrupt: expected a number, found '" .. found .. "'"
  end
  local floor = tonumber(ARGV[12])
  local newest = math.max(tonumber(last or 0), holder and holder.token or 0)
  -- As FencingToken::mint: no honest client has seen such a token, unless it was given out here.
  if floor > newest and floor > clock_us + YEAR then return nil, 'FLOOR ' .. int(floor) end
  local token = math.max(newest + 1, clock_us, floor + 1)
  if token >= TOKEN_END then return nil, 'LIMIT no fencing token is left: they end below 2^53' end
  return token
end

local token, failure = next_token()
if failure then return redis.error_reply(failure) end
local is_cancelled = redis.call('EXISTS', GRAVE) == 1
remove_expired()

-- Releases the predecessor. With `replaced` this claim writes the owner key next.
local function release_predecessor(replaced)
  local lease = lease_of(predecessor)
  if lease and not has(lease, 'k') then end_lease(lease, replaced) end
  leave_queue(predecessor, true)
  if tombstone_ms >= 0 then write_tombstone(KEYS[10], 'b', tombstone_ms) end
end

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
    held, share_count, dirty = held + weight, share_count + 1, true
  end
  if ARGV[11] ~= '' then add_extra(lease, owner .. ':note', string.sub(ARGV[11], 2)) end
  if inherited and inherited.asked then
    add_extra(lease, owner .. ':asked', inherited.asked, owner .. ':by', inherited.by, owner .. ':why', inherited.why)
  end
  store(lease, ends)
  last = int(token)
  -- A token ahead of the clock must be remembered for longer, or the next one could be lower.
  redis.call('SET', FENCE, last, 'PX', RETENTION + math.max(0, math.ceil((token - now_us) / 1000)))
  if state_exists or dirty then note_change() end
  return { 'granted', last, left(ends), math.max(0, token - clock_us) }
end

local function join_queue(arrival, since)
  if queue_length == 0 then fresh = true end
  local ends = after(place_ttl)
  redis.call('ZADD', LINE, arrival, owner)
  redis.call('ZADD', PLACES, ends, owner)
  redis.call('HSET', CLAIMS, owner, int(weight) .. '|' .. int(since) .. '|' .. client .. '|' .. ARGV[10])
  queue_length = queue_length + 1
  keep_until(ends)
  note_change()
end

-- Takes over the lease of the predecessor, if it is large enough; returns nil if that is refused.
local function take_over_lease(lease)
  local downgrade = weight < lease.weight
  -- While others wait, a lease is handed over only so often, and not at all if it is paused or evicted.
  local too_often = lease.handovers >= HANDOVERS_MAX and queue_length > 0
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
local function take_over()
  local lease = lease_of(predecessor)
  if lease and not has(lease, 'k') and lease.weight >= weight then return take_over_lease(lease) end
  local arrival = arrival_of(predecessor)
  if arrival then
    local since = string.match(redis.call('HGET', CLAIMS, predecessor) or '', '^%d+|(%d+)|') or now_us
    leave_queue(predecessor, true)
    if queue and not arrival_of(owner) then join_queue(arrival, tonumber(since)) end
  end
  release_predecessor()
  return nil
end

-- Keeps the place of the claim in the queue for the place ttl, or gives it one.
local function stay_in_queue()
  local arrival = arrival_of(owner)
  if arrival then
    local ends = math.max(after(place_ttl), tonumber(redis.call('ZSCORE', PLACES, owner) or 0))
    redis.call('ZADD', PLACES, 'XX', ends, owner)
    set_client(owner, client)
    if ends > keys_until then
      keep_until(ends)
      dirty = true
    end
  else
    join_queue(arrivals, now_us)
    arrivals = arrivals + 1
  end
end

local function blocked()
  local rank = queue_length > 0 and redis.call('ZRANK', LINE, owner) or false
  local ahead = rank or queue_length
  local next_end = pause
  local function sooner(ends) if ends and (not next_end or ends < next_end) then next_end = ends end end
  local leases = {}
  if share_count > 0 then
    for _, id in ipairs(redis.call('ZRANGE', SHARES, 0, 2)) do leases[#leases + 1] = share_of(id) end
  end
  if holder then leases[#leases + 1] = holder end
  table.sort(leases, function(a, b) return ends_of(a) < ends_of(b) end)
  local holders = {}
  for i = 1, math.min(3, #leases) do
    holders[i] = describe(leases[i], last)
    sooner(ends_of(leases[i]))
  end
  -- For a waiter beyond the window, the end of one place changes nothing.
  if queue_length > 0 and ahead <= WINDOW then
    sooner(tonumber(redis.call('ZRANGE', PLACES, 0, 0, 'WITHSCORES')[2]))
  end
  return {
    'blocked', rank and 1 or 0, ahead, next_end and left(next_end) or -1, pause and 1 or 0, cursor(last), holders,
  }
end

-- The verdict, or nil if the claim is blocked.
local function decide()
  if is_cancelled then
    -- This owner has a tombstone, so refuse it. Still release its predecessor: that was part of the same request.
    if predecessor ~= '' then release_predecessor() end
    return { 'buried' }
  end
  local lease = lease_of(owner)
  -- The owner of a kept lease has released it, so this is a late request.
  if lease and has(lease, 'k') then return { 'buried' } end
  if lease then return { 'granted', int(lease.token), left(ends_of(lease)), 0 } end
  local in_use = (holder and not holder.foreign) or share_count > 0 or queue_length > 0
  if in_use and capacity ~= of then
    leave_queue(owner)
    return { 'mismatch', capacity }
  end
  if queue and queue_length >= tonumber(ARGV[16]) and not arrival_of(owner) then
    return redis.error_reply('LIMIT the queue of this resource is full: ' .. queue_length .. ' claims wait')
  end
  if predecessor ~= '' then
    local granted = take_over()
    if granted then return granted end
  end
  if capacity ~= of then capacity, dirty = of, dirty or state_exists end
  local rank = queue_length > 0 and redis.call('ZRANK', LINE, owner) or queue_length
  if not pause and fits(rank, weight, of) then
    local freed_before = freed
    local was_queued = leave_queue(owner)
    freed = freed_before
    local granted = grant(after(ttl), 0)
    granted.was_queued = was_queued
    return granted
  end
  if queue then stay_in_queue() else leave_queue(owner) end
  return nil
end

local verdict = decide()
finish(verdict and verdict.was_queued)
return verdict or blocked()
