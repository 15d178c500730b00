-- renew, for one: whatever it holds, or its place in line.
--
-- KEYS  1-9 as in resource.lua
-- ARGV  3 client  4 owner  5 ttl ms  6 note, after an n; empty to leave it as it is
-- Reply kept, token, remaining ms, marks, asked: ms left or -1, by, why
--       queued, remaining ms
--       gone, the tombstone or nil

local owner, ttl = ARGV[4], tonumber(ARGV[5])
settle()

local function keep(seat)
  local ends = math.max(ends_of(seat), after(ttl))
  if has(seat, 'e') then ends = ends_of(seat) end
  if ARGV[6] ~= '' then
    add_extra(seat, owner .. ':note', string.sub(ARGV[6], 2))
    note_change()
  end
  store(seat, ends)
  if horizon > keys_until then dirty = true end
  local by = seen(seat)
  return { 'kept', by[2], left(ends), seat.marks, by[9], by[10], by[11] }
end

local function judge()
  local seat = seat_of(owner)
  if seat and not has(seat, 'k') then return keep(seat) end
  if arrival_of(owner) then
    local ends = math.max(after(ttl), tonumber(redis.call('ZSCORE', PLACES, owner) or 0))
    redis.call('ZADD', PLACES, 'XX', ends, owner)
    lasts(ends)
    if ends > keys_until then dirty = true end
    return { 'queued', left(ends) }
  end
  return { 'gone', redis.call('GET', GRAVE) }
end

local answer = judge()
finish()
return answer
