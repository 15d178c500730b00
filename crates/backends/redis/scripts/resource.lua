-- One resource: what every script knows and does. Put before each verb's own file; never run alone.
--
-- KEYS  1 owner   string  owner|token|since|turns|marks|who: the holder of 1 of 1, PX = its lease
--       2 fence   string  the newest token, PX = retention
--       3 shares  zset    owner -> end: the holders of other shares
--       4 claims  hash    owner -> weight|token|since|turns|marks|who of a holder, weight|since|client|who of a place;
--                         owner:note, owner:asked, owner:by, owner:why
--       5 line    zset    owner -> arrival
--       6 places  zset    owner -> end of its place
--       7 state   hash    capacity, held (weights in shares), version, arrivals, pause, extra, watched, until
--       8 watch   zset    client -> until when it wants to hear of any change
--       9 grave   string  b (buried) or e (evicted): the tombstone of the claim's owner
-- ARGV  1 the resource's key, for messages   2 what the name of a client's channel begins with
--
-- Times are the server's: `since` in microseconds, ends in milliseconds rounded up. What ends at t is over at t.
-- Keys are read before the first one is written, so an error of a wrong type has no effect.
-- A holder's marks: e not renewed any more, k nobody there but closed, x more about it in claims and state.

local OWNER, FENCE, SHARES, CLAIMS, LINE, PLACES, STATE, WATCH, GRAVE =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local WINDOW, SWEEP, SLACK, TEN_YEARS = 64, 500, 60000, 315360000000

local clock = redis.call('TIME')
local now_us = clock[1] * 1000000 + clock[2]
local now = now_us / 1000

-- Lua would write a large number as 1.7e+15.
local function int(number) return string.format('%.0f', number) end
local function after(ms) return math.ceil(now) + ms end
local function left(ends) return math.max(0, math.floor(ends - now)) end

local capacity, held, version, arrivals, pause, extra, watched, keys_until
local line_length, share_count = 0, 0
local there, dirty, fresh, changed, freed = false, false, false, false, false
local horizon = 0
local holder -- who has the owner key

local function read_state()
  local s = redis.call('HMGET', STATE, 'capacity', 'held', 'version', 'arrivals', 'pause', 'extra', 'watched', 'until')
  there = s[3] ~= false
  capacity, held, version = tonumber(s[1]) or 1, tonumber(s[2]) or 0, tonumber(s[3]) or now_us
  arrivals, pause, extra = tonumber(s[4]) or 0, tonumber(s[5]), s[6]
  watched, keys_until = s[7], tonumber(s[8]) or 0
  if there then
    line_length, share_count = redis.call('ZCARD', LINE), redis.call('ZCARD', SHARES)
    if share_count == 0 then held = 0 end
  end
end

local function read_holder()
  local value = redis.pcall('GET', OWNER)
  if not value then return end
  if type(value) == 'table' then value = 'not a string' end
  local id, token, since, turns, marks, who = string.match(value, '^(%x+)|(%d+)|(%d+)|(%d+)|(%a*)|(.*)$')
  if id and #id == 32 then
    holder = {
      owner = id, token = tonumber(token), since = tonumber(since), turns = tonumber(turns), marks = marks,
      who = who, weight = 1, alone = true,
    }
  else
    -- Someone's own SET NX: a stranger who holds it.
    holder = { stranger = true, who = string.sub(value, 1, 200), weight = 1, alone = true }
  end
end

-- When a seat ends. Of the owner key that is asked only if someone wants to know.
local function ends_of(seat)
  if not seat.ends then
    local ms = redis.call('PTTL', OWNER)
    seat.ends = ms >= 0 and math.floor(now) + ms or after(TEN_YEARS)
  end
  return seat.ends
end

local function has(seat, mark) return string.find(seat.marks, mark, 1, true) ~= nil end

local function note_change()
  version = version + 1
  changed, dirty = true, true
end

-- A seat of someone in shares.
local function share_of(owner)
  if share_count == 0 then return nil end
  local ends = tonumber(redis.call('ZSCORE', SHARES, owner) or nil)
  local record = ends and redis.call('HGET', CLAIMS, owner)
  if not record then return nil end
  local weight, token, since, turns, marks, who = string.match(record, '^(%d+)|(%d+)|(%d+)|(%d+)|(%a*)|(.*)$')
  return {
    owner = owner, weight = tonumber(weight), token = tonumber(token), since = tonumber(since),
    turns = tonumber(turns), marks = marks, who = who, ends = ends,
  }
end

local function seat_of(owner)
  if holder and holder.owner == owner then return holder end
  return share_of(owner)
end

local function arrival_of(owner)
  if line_length == 0 then return nil end
  return tonumber(redis.call('ZSCORE', LINE, owner) or nil)
end

local function forget_extras(owner)
  redis.call('HDEL', CLAIMS, owner .. ':note', owner .. ':asked', owner .. ':by', owner .. ':why')
end

-- Everyone in the way of a claim, the owner key's holder included.
local function taken()
  if not holder then return held end
  return holder.stranger and math.huge or held + holder.weight
end

local function stand_up(seat, replaced)
  if seat.alone then
    if not replaced then redis.call('DEL', OWNER) end
    holder = nil
  else
    redis.call('ZREM', SHARES, seat.owner)
    redis.call('HDEL', CLAIMS, seat.owner)
    held, share_count = held - seat.weight, share_count - 1
  end
  if has(seat, 'x') then
    forget_extras(seat.owner)
    if extra == seat.owner then extra, dirty = false, true end
  end
  freed = true
  note_change()
end

-- On a cluster the channel is in the slot of the resource, and the message stays in its shard.
local function tell(client, text)
  local verb = string.find(ARGV[2], '{', 1, true) and 'SPUBLISH' or 'PUBLISH'
  redis.call(verb, ARGV[2] .. client, text)
end

local function wake(owner, record)
  local client = string.match(record, '^%d+|%d+|(%x*)|')
  if client and client ~= '' then tell(client, owner .. '|' .. ARGV[1]) end
end

-- A place is waited for at this client from now on, perhaps another one than took it: it is woken there.
local function wait_at(owner, client)
  local weight, since, before, who = string.match(redis.call('HGET', CLAIMS, owner) or '', '^(%d+)|(%d+)|(%x*)|(.*)$')
  if weight and before ~= client then
    redis.call('HSET', CLAIMS, owner, weight .. '|' .. since .. '|' .. client .. '|' .. who)
  end
end

-- With `tell`, whoever waits there hears of it: it was not its own doing.
local function leave_line(owner, tell)
  if not arrival_of(owner) then return false end
  if tell then wake(owner, redis.call('HGET', CLAIMS, owner) or '') end
  redis.call('ZREM', LINE, owner)
  redis.call('ZREM', PLACES, owner)
  redis.call('HDEL', CLAIMS, owner)
  line_length, freed = line_length - 1, true
  note_change()
  return true
end

-- Drops what has ended. At most so many at once: who asks next drops the rest.
local function settle()
  if not there then return end
  if extra and not (holder and holder.owner == extra) then
    forget_extras(extra)
    extra, dirty = false, true
  end
  if share_count > 0 then
    for _, owner in ipairs(redis.call('ZRANGEBYSCORE', SHARES, '-inf', math.floor(now), 'LIMIT', 0, SWEEP)) do
      stand_up(share_of(owner) or { owner = owner, weight = 0, marks = '' })
    end
  end
  if line_length > 0 then
    for _, owner in ipairs(redis.call('ZRANGEBYSCORE', PLACES, '-inf', math.floor(now), 'LIMIT', 0, SWEEP)) do
      leave_line(owner, true)
    end
  end
  if pause and pause <= now then
    pause, freed = nil, true
    note_change()
  end
end

local function bury(key, why, ms)
  redis.call('SET', key, why, 'PX', math.max(1, ms))
end

local function owner_value(seat)
  return seat.owner .. '|' .. int(seat.token) .. '|' .. int(seat.since) .. '|' .. seat.turns .. '|' .. seat.marks
    .. '|' .. seat.who
end

-- Something is there until `ends`: no key goes before.
local function lasts(ends) horizon = math.max(horizon, ends) end

-- Writes a seat that was changed, and when it ends if `ends` is given.
local function store(seat, ends)
  if seat.alone and ends then
    redis.call('SET', OWNER, owner_value(seat), 'PX', math.max(1, ends - math.ceil(now)))
  elseif seat.alone then
    redis.call('SET', OWNER, owner_value(seat), 'XX', 'KEEPTTL')
  else
    if ends then redis.call('ZADD', SHARES, 'XX', ends, seat.owner) end
    local record = int(seat.weight) .. '|' .. int(seat.token) .. '|' .. int(seat.since) .. '|' .. seat.turns .. '|'
      .. seat.marks .. '|' .. seat.who
    redis.call('HSET', CLAIMS, seat.owner, record)
  end
  seat.ends = ends or seat.ends
  if has(seat, 'x') or not seat.alone then lasts(ends_of(seat)) end
end

-- Keeps something about a seat beside it: there is no room in the value of the owner key.
local function add_extra(seat, ...)
  if seat.alone and extra ~= seat.owner then
    if extra then forget_extras(extra) end
    extra, dirty, fresh = seat.owner, true, true
  end
  -- A field that is new may be in a key that is new, which has no end yet.
  if select('#', ...) > 0 and redis.call('HSET', CLAIMS, ...) > 0 then dirty, fresh = true, true end
  if not has(seat, 'x') then seat.marks = seat.marks .. 'x' end
end

local function weight_of_place(owner)
  local record = redis.call('HGET', CLAIMS, owner)
  return record and tonumber(string.match(record, '^(%d+)|')) or 0
end

-- Whether a claim of this weight fits behind `rank` places.
local function fits(rank, weight, of)
  local sum = taken() + weight
  -- No place weighs less than 1: with that most lines need not be read.
  if rank > WINDOW or sum + rank > of then return false end
  if rank == 0 then return true end
  for _, owner in ipairs(redis.call('ZRANGE', LINE, 0, rank - 1)) do
    sum = sum + weight_of_place(owner)
    if sum > of then return false end
  end
  return true
end

-- Calls `visit(owner, record, number)` for each place that can be granted now.
local function movers(visit)
  local sum = taken()
  if line_length == 0 or pause or sum >= capacity then return end
  local most = math.min(WINDOW, capacity - sum)
  for number, owner in ipairs(redis.call('ZRANGE', LINE, 0, most - 1)) do
    local record = redis.call('HGET', CLAIMS, owner) or ''
    sum = sum + (tonumber(string.match(record, '^(%d+)|')) or 0)
    if sum > capacity then return end
    visit(owner, record, number)
  end
end

-- Tells those whom it concerns, and writes down what is left.
local function finish(granted_out_of_line)
  if freed then
    movers(wake)
  elseif granted_out_of_line then
    -- Whoever could move before still can and was told; only at the edge of the window someone new can.
    if line_length >= WINDOW then
      movers(function(owner, record, number) if number == WINDOW then wake(owner, record) end end)
    end
  end
  if changed and watched then
    for _, client in ipairs(redis.call('ZRANGE', WATCH, 0, -1)) do
      tell(client, '*|' .. ARGV[1])
    end
    redis.call('DEL', WATCH)
    watched = false
  end
  if not dirty then return end
  local needed = line_length > 0 or share_count > 0 or pause or watched or (extra and holder and holder.owner == extra)
  if not needed then
    if there then redis.call('DEL', STATE, CLAIMS) end
    there = false
    return
  end
  if not there then fresh = true end
  local until_then = keys_until
  if horizon > keys_until or fresh then until_then = math.max(horizon, keys_until, math.ceil(now)) + SLACK end
  redis.call('HSET', STATE, 'capacity', int(capacity), 'held', int(held), 'version', int(version), 'arrivals',
    int(arrivals), 'until', int(until_then))
  if pause then redis.call('HSET', STATE, 'pause', int(pause)) elseif there then redis.call('HDEL', STATE, 'pause') end
  if extra then redis.call('HSET', STATE, 'extra', extra) elseif there then redis.call('HDEL', STATE, 'extra') end
  if watched then redis.call('HSET', STATE, 'watched', 1) elseif there then redis.call('HDEL', STATE, 'watched') end
  if until_then ~= keys_until then
    for _, key in ipairs({ SHARES, CLAIMS, LINE, PLACES, STATE, WATCH }) do redis.call('PEXPIREAT', key, int(until_then)) end
  end
  there = true
end

-- A number for this state of the resource: another one after any change.
local function cursor(last)
  local token = holder and (holder.stranger and holder.who or int(holder.token)) or ''
  local digest = redis.sha1hex((last or '') .. '|' .. token .. '|' .. (there and int(version) or ''))
  return string.sub(digest, 1, 12)
end

-- A holder as others see it.
local function seen(seat, last)
  if seat.stranger then
    return { seat.who, tonumber(last) or 1, 1, 0, left(ends_of(seat)), false, 0, '', -1, false, false }
  end
  local note, asked, by, why = false, -1, false, false
  if has(seat, 'x') then
    local o = seat.owner
    local more = redis.call('HMGET', CLAIMS, o .. ':note', o .. ':asked', o .. ':by', o .. ':why')
    note, by, why = more[1], more[3], more[4]
    if more[2] then asked = left(tonumber(more[2])) end
  end
  return {
    seat.who, int(seat.token), seat.weight, math.max(0, now_us - seat.since), left(ends_of(seat)), note, seat.turns,
    seat.marks, asked, by, why,
  }
end

read_state()
read_holder()
