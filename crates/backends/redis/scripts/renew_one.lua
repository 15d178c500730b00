-- renew, for one claim: its lease of any kind, or its place in the queue. Put after resource.lua.
--
-- KEYS  1-9 as in resource.lua
-- ARGV  3 listener  4 owner  5 ttl ms  6 note, after an n; empty to leave it as it is
-- Reply kept, token, remaining ms, marks, request to finish: ms left or -1, by, why
--       queued, remaining ms
--       gone, the value of the tombstone or nil

local owner, ttl = ARGV[4], tonumber(ARGV[5])
remove_expired()

local function renew_lease(lease)
  -- Never shortened; and not prolonged while it is evicted.
  local ends = math.max(ends_of(lease), after(ttl))
  if has(lease, 'e') then ends = ends_of(lease) end
  if ARGV[6] ~= '' then
    add_extra(lease, owner .. ':note', string.sub(ARGV[6], 2))
    note_change()
  end
  store(lease, ends)
  if content_until > keys_until then dirty = true end
  local described = describe(lease)
  return { 'kept', described[2], left(ends), lease.marks, described[9], described[10], described[11] }
end

local function renew()
  local lease = lease_of(owner)
  if lease and not has(lease, 'k') then return renew_lease(lease) end
  if arrival_of(owner) then
    note_heard(owner)
    pass_over_silent(owner)
    update_place(owner, ARGV[3], true)
    local ends = after(ttl)
    -- GT: a place is never shortened.
    if redis.call('ZADD', PLACES, 'XX', 'GT', 'CH', ends, owner) == 0 then
      ends = tonumber(redis.call('ZSCORE', PLACES, owner) or ends)
    end
    keep_until(ends)
    if ends > keys_until then dirty = true end
    return { 'queued', left(ends) }
  end
  return { 'gone', tombstone }
end

local renewal = renew()
finish(renewal[1] ~= 'queued' and 'renewal', owner)
return renewal
