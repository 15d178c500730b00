-- acquire: one round trip, one step.
--
-- KEYS  1-9 as in resource.lua; 10 the grave of whom it succeeds (any key of the resource if there is nobody)
-- ARGV  3 client  4 owner  5 weight  6 capacity  7 ttl ms  8 place ttl ms  9 queue: 1 or 0  10 who
--       11 note, after an n; empty if there is none  12 floor or 0  13 the epoch's lead in microseconds
--       14 whom it succeeds, or empty  15 bury that one for ms, or -1  16 places in a line at the most
-- Reply granted, token, remaining ms, how far the token is ahead of the clock in microseconds
--       blocked, placed, ahead, changes in ms or -1, paused, cursor, [holder…]
--       buried
--       mismatch, capacity
-- Error LIMIT no token or place is left; FLOOR and a floor more than a year ahead of the clock; CORRUPT and a key. No effect.

local client, owner, weight, of = ARGV[3], ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6])
local ttl, place_ttl, queue = tonumber(ARGV[7]), tonumber(ARGV[8]), ARGV[9] == '1'
local from, from_bury = ARGV[14], tonumber(ARGV[15])
local YEAR, RETENTION = 366 * 86400 * 1000000, 2 * 3600 * 1000

local last = redis.call('GET', FENCE)
local clock_us = now_us + tonumber(ARGV[13])

local function mint()
  if last and not string.match(last, '^%d+$') then return nil, 'CORRUPT ' .. FENCE end
  local floor = tonumber(ARGV[12])
  local newest = math.max(tonumber(last or 0), holder and holder.token or 0)
  -- As FencingToken::mint: no honest client has seen such a token, unless it was given out here.
  if floor > newest and floor > clock_us + YEAR then return nil, 'FLOOR ' .. int(floor) end
  local token = math.max(newest + 1, clock_us, floor + 1)
  if token >= 9007199254740992 then return nil, 'LIMIT no fencing token is left: they end below 2^53' end
  return token
end

local token, wrong = mint()
if wrong then return redis.error_reply(wrong) end
local is_buried = redis.call('EXISTS', GRAVE) == 1
settle()

-- The predecessor goes. With `replaced` the successor writes the same key next.
local function depart(replaced)
  local seat = seat_of(from)
  if seat and not has(seat, 'k') then stand_up(seat, replaced) end
  leave_line(from, true)
  if from_bury >= 0 then bury(KEYS[10], 'b', from_bury) end
end

-- `said` is what an operator said to whom it succeeds, if that stands: the time to finish, by whom, why, the marks.
local function sit(ends, turns, said)
  local seat = { owner = owner, weight = weight, token = token, since = now_us, turns = turns, marks = '', who = ARGV[10] }
  if said and said.evicting then seat.marks = 'e' end
  if capacity ~= of then capacity, dirty = of, true end
  if weight == 1 and of == 1 then
    seat.alone, holder = true, seat
  else
    if share_count == 0 then fresh = true end
    redis.call('ZADD', SHARES, ends, owner)
    held, share_count, dirty = held + weight, share_count + 1, true
  end
  if ARGV[11] ~= '' then add_extra(seat, owner .. ':note', string.sub(ARGV[11], 2)) end
  if said and said.asked then
    add_extra(seat, owner .. ':asked', said.asked, owner .. ':by', said.by, owner .. ':why', said.why)
  end
  store(seat, ends)
  last = int(token)
  redis.call('SET', FENCE, last, 'PX', RETENTION + math.max(0, math.ceil((token - now_us) / 1000)))
  if there or dirty then note_change() end
  return { 'granted', last, left(ends), math.max(0, token - clock_us) }
end

local function take_place(arrival, since)
  if line_length == 0 then fresh = true end
  local ends = after(place_ttl)
  redis.call('ZADD', LINE, arrival, owner)
  redis.call('ZADD', PLACES, ends, owner)
  redis.call('HSET', CLAIMS, owner, int(weight) .. '|' .. int(since) .. '|' .. client .. '|' .. ARGV[10])
  line_length = line_length + 1
  lasts(ends)
  note_change()
end

-- Takes over a seat, and says so; or takes over a place, or finds nothing.
local function succeed()
  local seat = seat_of(from)
  if seat and not has(seat, 'k') and seat.weight >= weight then
    local downgrade = weight < seat.weight
    local bounded = seat.turns >= 16 and line_length > 0
    local refused = not downgrade and (pause or has(seat, 'e') or bounded)
    local freed_before = freed
    -- With a downgrade the same work goes on with less: what was said to it stands, or evicting would be in vain.
    local said
    if downgrade then
      local more = redis.call('HMGET', CLAIMS, from .. ':asked', from .. ':by', from .. ':why')
      said = { evicting = has(seat, 'e'), asked = more[1], by = more[2], why = more[3] }
    end
    depart(not refused and of == 1)
    if refused then return nil end
    -- The seat was never empty: nobody is to be woken for it, unless room is left beside a downgrade.
    if not downgrade then freed = freed_before end
    leave_line(owner)
    return sit(downgrade and ends_of(seat) or after(ttl), downgrade and seat.turns or seat.turns + 1, said)
  end
  local arrival = arrival_of(from)
  if arrival then
    local since = string.match(redis.call('HGET', CLAIMS, from) or '', '^%d+|(%d+)|') or now_us
    leave_line(from, true)
    if queue and not arrival_of(owner) then take_place(arrival, tonumber(since)) end
  end
  depart()
  return nil
end

local function stay_in_line()
  local arrival = arrival_of(owner)
  if arrival then
    local ends = math.max(after(place_ttl), tonumber(redis.call('ZSCORE', PLACES, owner) or 0))
    redis.call('ZADD', PLACES, 'XX', ends, owner)
    wait_at(owner, client)
    if ends > keys_until then
      lasts(ends)
      dirty = true
    end
  else
    take_place(arrivals, now_us)
    arrivals = arrivals + 1
  end
end

local function blocked()
  local rank = line_length > 0 and redis.call('ZRANK', LINE, owner) or false
  local ahead = rank or line_length
  local next_end = pause
  local function sooner(ends) if ends and (not next_end or ends < next_end) then next_end = ends end end
  local seats = {}
  if share_count > 0 then
    for _, id in ipairs(redis.call('ZRANGE', SHARES, 0, 2)) do seats[#seats + 1] = share_of(id) end
  end
  if holder then seats[#seats + 1] = holder end
  table.sort(seats, function(a, b) return ends_of(a) < ends_of(b) end)
  local holders = {}
  for i = 1, math.min(3, #seats) do
    holders[i] = seen(seats[i], last)
    sooner(ends_of(seats[i]))
  end
  -- Far behind, the end of one place changes nothing.
  if line_length > 0 and ahead <= WINDOW then
    sooner(tonumber(redis.call('ZRANGE', PLACES, 0, 0, 'WITHSCORES')[2]))
  end
  return {
    'blocked', rank and 1 or 0, ahead, next_end and left(next_end) or -1, pause and 1 or 0, cursor(last), holders,
  }
end

local function judge()
  if is_buried then
    -- The claim is dead, but whom it was to succeed wanted to go all the same.
    if from ~= '' then depart() end
    return { 'buried' }
  end
  local seat = seat_of(owner)
  -- A kept seat is nobody's: its owner has said farewell, so this is a request that comes late.
  if seat and has(seat, 'k') then return { 'buried' } end
  if seat then return { 'granted', int(seat.token), left(ends_of(seat)), 0 } end
  local anyone = (holder and not holder.stranger) or share_count > 0 or line_length > 0
  if anyone and capacity ~= of then
    leave_line(owner)
    return { 'mismatch', capacity }
  end
  if queue and line_length >= tonumber(ARGV[16]) and not arrival_of(owner) then
    return redis.error_reply('LIMIT ' .. line_length .. ' wait in line already')
  end
  if from ~= '' then
    local grant = succeed()
    if grant then return grant end
  end
  if capacity ~= of then capacity, dirty = of, dirty or there end
  local rank = line_length > 0 and redis.call('ZRANK', LINE, owner) or line_length
  if not pause and fits(rank, weight, of) then
    local freed_before = freed
    local waited = leave_line(owner)
    freed = freed_before
    local grant = sit(after(ttl), 0)
    grant.waited = waited
    return grant
  end
  if queue then stay_in_line() else leave_line(owner) end
  return nil
end

local verdict = judge()
finish(verdict and verdict.waited)
return verdict or blocked()
