-- One resource: the state and the functions that every verb uses. Put before the file of each verb; never run alone.
--
-- KEYS  1 owner   string  owner|token|since|handovers|marks|who: the holder of 1 of 1; its expiry is the end of the lease
--       2 fence   string  the newest token; its expiry is the retention
--       3 shares  zset    owner -> end of the lease: the holders of other shares
--       4 claims  hash    owner -> weight|token|since|handovers|marks|who of a holder in `shares`,
--                         owner -> weight|since|client|who of a waiter;
--                         owner:note, owner:asked, owner:by, owner:why of a holder
--       5 line    zset    owner -> arrival number: the queue
--       6 places  zset    owner -> end of its place in the queue
--       7 state   hash    capacity, held (the weights in shares), version, arrivals, pause, extra, watched, until
--       8 watch   zset    client -> until when it is woken by any change
--       9 grave   string  b (cancelled) or e (evicted): the tombstone of the owner of the claim
-- ARGV  1 the key of the resource, for messages   2 the prefix of a client's channel
-- Reply as in the file of each verb
--
-- Times are of the server's clock: `since` in microseconds, ends in milliseconds, rounded up. What ends at t is over at
-- t. Keys are read before the first one is written, so an error of a wrong type has no effect.
--
-- The marks of a holder:
--   e  evicted: not renewed any more
--   k  kept: its owner has released it, and it stays closed until its end (`keep_for`)
--   x  extras: more about it is in `claims`, and its owner is in the field `extra` of `state`
--
-- ADR 0019: the plain scripts rely on it that `state` exists as soon as there is anything but a plain holder.

local OWNER, FENCE, SHARES, CLAIMS, LINE, PLACES, STATE, WATCH, GRAVE =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9]
-- How many waiters at the head of the queue are looked at; how many expired entries one call removes; how much longer
-- than their content keys live, in ms.
local WINDOW, SWEEP, SLACK, TEN_YEARS = 64, 500, 60000, 315360000000

local clock = redis.call('TIME')
local now_us = clock[1] * 1000000 + clock[2]
local now = now_us / 1000

-- Without a format, Lua would write a large number as 1.7e+15.
local function int(number) return string.format('%.0f', number) end
local function after(ms) return math.ceil(now) + ms end
local function left(ends) return math.max(0, math.floor(ends - now)) end

-- The fields of `state`. `keys_until` is the field `until`: when the keys of the resource expire.
local capacity, held, version, arrivals, pause, extra, watched, keys_until
local queue_length, share_count = 0, 0
-- state_exists: `state` is stored.       dirty: `state` must be written.   fresh: a key may be new, without an expiry.
-- changed: clients that watch are woken. freed: capacity or a place became free, so waiters may be grantable.
local state_exists, dirty, fresh, changed, freed = false, false, false, false, false
-- Until when there is content in the keys: they must not expire before.
local content_until = 0
local holder -- the holder in the owner key

local function read_state()
  local s = redis.call('HMGET', STATE, 'capacity', 'held', 'version', 'arrivals', 'pause', 'extra', 'watched', 'until')
  state_exists = s[3] ~= false
  capacity, held, version = tonumber(s[1]) or 1, tonumber(s[2]) or 0, tonumber(s[3]) or now_us
  arrivals, pause, extra = tonumber(s[4]) or 0, tonumber(s[5]), s[6]
  watched, keys_until = s[7], tonumber(s[8]) or 0
  if state_exists then
    queue_length, share_count = redis.call('ZCARD', LINE), redis.call('ZCARD', SHARES)
    if share_count == 0 then held = 0 end
  end
end

local function read_holder()
  -- pcall: a key of another type is a foreign lock, too.
  local value = redis.pcall('GET', OWNER)
  if not value then return end
  if type(value) == 'table' then value = 'not a string' end
  local id, token, since, handovers, marks, who = string.match(value, '^(%x+)|(%d+)|(%d+)|(%d+)|(%a*)|(.*)$')
  if id and #id == 32 then
    holder = {
      owner = id, token = tonumber(token), since = tonumber(since), handovers = tonumber(handovers), marks = marks,
      who = who, weight = 1, in_owner_key = true,
    }
  else
    -- Another program's SET NX: it holds the resource.
    holder = { foreign = true, who = string.sub(value, 1, 200), weight = 1, in_owner_key = true }
  end
end

-- When a lease ends. The expiry of the owner key is read only if it is needed.
local function ends_of(lease)
  if not lease.ends then
    local ms = redis.call('PTTL', OWNER)
    lease.ends = ms >= 0 and math.floor(now) + ms or after(TEN_YEARS)
  end
  return lease.ends
end

local function has(lease, mark) return string.find(lease.marks, mark, 1, true) ~= nil end

local function note_change()
  version = version + 1
  changed, dirty = true, true
end

-- The lease of this owner in `shares`, or nil.
local function share_of(owner)
  if share_count == 0 then return nil end
  local ends = tonumber(redis.call('ZSCORE', SHARES, owner) or nil)
  local record = ends and redis.call('HGET', CLAIMS, owner)
  if not record then return nil end
  local weight, token, since, handovers, marks, who = string.match(record, '^(%d+)|(%d+)|(%d+)|(%d+)|(%a*)|(.*)$')
  return {
    owner = owner, weight = tonumber(weight), token = tonumber(token), since = tonumber(since),
    handovers = tonumber(handovers), marks = marks, who = who, ends = ends,
  }
end

-- The lease of this owner, or nil.
local function lease_of(owner)
  if holder and holder.owner == owner then return holder end
  return share_of(owner)
end

-- The arrival number of this owner in the queue, or nil.
local function arrival_of(owner)
  if queue_length == 0 then return nil end
  return tonumber(redis.call('ZSCORE', LINE, owner) or nil)
end

local function forget_extras(owner)
  redis.call('HDEL', CLAIMS, owner .. ':note', owner .. ':asked', owner .. ':by', owner .. ':why')
end

-- The weight of all leases, with the one in the owner key. A foreign lock takes everything.
local function taken()
  if not holder then return held end
  return holder.foreign and math.huge or held + holder.weight
end

-- Ends a lease. With `replaced` the successor writes the owner key next, so it need not be deleted.
local function end_lease(lease, replaced)
  if lease.in_owner_key then
    if not replaced then redis.call('DEL', OWNER) end
    holder = nil
  else
    redis.call('ZREM', SHARES, lease.owner)
    redis.call('HDEL', CLAIMS, lease.owner)
    held, share_count = held - lease.weight, share_count - 1
  end
  if has(lease, 'x') then
    forget_extras(lease.owner)
    if extra == lease.owner then extra, dirty = false, true end
  end
  freed = true
  note_change()
end

-- ADR 0014: on a cluster the channel is in the slot of the resource, and the message stays in its shard.
local function publish(client, text)
  local verb = string.find(ARGV[2], '{', 1, true) and 'SPUBLISH' or 'PUBLISH'
  redis.call(verb, ARGV[2] .. client, text)
end

-- Wakes a waiter at the client in its record.
local function wake(owner, record)
  local client = string.match(record, '^%d+|%d+|(%x*)|')
  if client and client ~= '' then publish(client, owner .. '|' .. ARGV[1]) end
end

-- From now on this waiter is woken at this client, which may be another one than the client that queued it.
local function set_client(owner, client)
  local weight, since, before, who = string.match(redis.call('HGET', CLAIMS, owner) or '', '^(%d+)|(%d+)|(%x*)|(.*)$')
  if weight and before ~= client then
    redis.call('HSET', CLAIMS, owner, weight .. '|' .. since .. '|' .. client .. '|' .. who)
  end
end

-- Removes an owner from the queue; returns false if it was not there. With `wake_it` the waiter is woken, because it
-- did not ask for this itself.
local function leave_queue(owner, wake_it)
  if not arrival_of(owner) then return false end
  if wake_it then wake(owner, redis.call('HGET', CLAIMS, owner) or '') end
  redis.call('ZREM', LINE, owner)
  redis.call('ZREM', PLACES, owner)
  redis.call('HDEL', CLAIMS, owner)
  queue_length, freed = queue_length - 1, true
  note_change()
  return true
end

-- Removes expired leases, places and pauses: at most SWEEP of each, the next call removes the rest.
local function remove_expired()
  if not state_exists then return end
  if extra and not (holder and holder.owner == extra) then
    forget_extras(extra)
    extra, dirty = false, true
  end
  if share_count > 0 then
    for _, owner in ipairs(redis.call('ZRANGEBYSCORE', SHARES, '-inf', math.floor(now), 'LIMIT', 0, SWEEP)) do
      end_lease(share_of(owner) or { owner = owner, weight = 0, marks = '' })
    end
  end
  if queue_length > 0 then
    for _, owner in ipairs(redis.call('ZRANGEBYSCORE', PLACES, '-inf', math.floor(now), 'LIMIT', 0, SWEEP)) do
      leave_queue(owner, true)
    end
  end
  if pause and pause <= now then
    pause, freed = nil, true
    note_change()
  end
end

local function write_tombstone(key, why, ms)
  redis.call('SET', key, why, 'PX', math.max(1, ms))
end

local function owner_value(lease)
  return lease.owner .. '|' .. int(lease.token) .. '|' .. int(lease.since) .. '|' .. lease.handovers .. '|' .. lease.marks
    .. '|' .. lease.who
end

-- There is content until `ends`: no key may expire before.
local function keep_until(ends) content_until = math.max(content_until, ends) end

-- Writes a lease that was changed; with `ends` also when it ends.
local function store(lease, ends)
  if lease.in_owner_key and ends then
    redis.call('SET', OWNER, owner_value(lease), 'PX', math.max(1, ends - math.ceil(now)))
  elseif lease.in_owner_key then
    redis.call('SET', OWNER, owner_value(lease), 'XX', 'KEEPTTL')
  else
    if ends then redis.call('ZADD', SHARES, 'XX', ends, lease.owner) end
    local record = int(lease.weight) .. '|' .. int(lease.token) .. '|' .. int(lease.since) .. '|' .. lease.handovers .. '|'
      .. lease.marks .. '|' .. lease.who
    redis.call('HSET', CLAIMS, lease.owner, record)
  end
  lease.ends = ends or lease.ends
  if has(lease, 'x') or not lease.in_owner_key then keep_until(ends_of(lease)) end
end

-- Stores fields about a lease in `claims`: the value of the owner key has no room for them.
local function add_extra(lease, ...)
  if lease.in_owner_key and extra ~= lease.owner then
    if extra then forget_extras(extra) end
    extra, dirty, fresh = lease.owner, true, true
  end
  -- A new field may be in a new key, which has no expiry yet.
  if select('#', ...) > 0 and redis.call('HSET', CLAIMS, ...) > 0 then dirty, fresh = true, true end
  if not has(lease, 'x') then lease.marks = lease.marks .. 'x' end
end

local function weight_of_waiter(owner)
  local record = redis.call('HGET', CLAIMS, owner)
  return record and tonumber(string.match(record, '^(%d+)|')) or 0
end

-- The admission rule: whether a claim of this weight fits behind the first `rank` waiters.
local function fits(rank, weight, of)
  local sum = taken() + weight
  -- Every waiter weighs at least 1, so most queues need not be read.
  if rank > WINDOW or sum + rank > of then return false end
  if rank == 0 then return true end
  for _, owner in ipairs(redis.call('ZRANGE', LINE, 0, rank - 1)) do
    sum = sum + weight_of_waiter(owner)
    if sum > of then return false end
  end
  return true
end

-- Calls `visit(owner, record, number)` for each waiter that can be granted now.
local function each_grantable(visit)
  local sum = taken()
  if queue_length == 0 or pause or sum >= capacity then return end
  local most = math.min(WINDOW, capacity - sum)
  for number, owner in ipairs(redis.call('ZRANGE', LINE, 0, most - 1)) do
    local record = redis.call('HGET', CLAIMS, owner) or ''
    sum = sum + (tonumber(string.match(record, '^(%d+)|')) or 0)
    if sum > capacity then return end
    visit(owner, record, number)
  end
end

local function wake_waiters(granted_from_queue)
  if freed then
    each_grantable(wake)
  elseif granted_from_queue and queue_length >= WINDOW then
    -- The waiters that could be granted before were woken then. Only the last one in the window is new.
    each_grantable(function(owner, record, number) if number == WINDOW then wake(owner, record) end end)
  end
end

local function wake_watchers()
  for _, client in ipairs(redis.call('ZRANGE', WATCH, 0, -1)) do
    publish(client, '*|' .. ARGV[1])
  end
  redis.call('DEL', WATCH)
  watched = false
end

local function write_field(name, value)
  if value then redis.call('HSET', STATE, name, value) elseif state_exists then redis.call('HDEL', STATE, name) end
end

-- Ends every verb: wakes waiters and watchers, and writes `state`.
local function finish(granted_from_queue)
  wake_waiters(granted_from_queue)
  if changed and watched then wake_watchers() end
  if not dirty then return end
  local needed = queue_length > 0 or share_count > 0 or pause or watched or (extra and holder and holder.owner == extra)
  if not needed then
    -- Back to a plain holder or none. ADR 0019.
    if state_exists then redis.call('DEL', STATE, CLAIMS) end
    state_exists = false
    return
  end
  if not state_exists then fresh = true end
  local expire_at = keys_until
  if content_until > keys_until or fresh then expire_at = math.max(content_until, keys_until, math.ceil(now)) + SLACK end
  redis.call('HSET', STATE, 'capacity', int(capacity), 'held', int(held), 'version', int(version), 'arrivals',
    int(arrivals), 'until', int(expire_at))
  write_field('pause', pause and int(pause))
  write_field('extra', extra)
  write_field('watched', watched and 1)
  if expire_at ~= keys_until then
    for _, key in ipairs({ SHARES, CLAIMS, LINE, PLACES, STATE, WATCH }) do redis.call('PEXPIREAT', key, int(expire_at)) end
  end
  state_exists = true
end

-- A number for this state of the resource. Any change gives another one.
local function cursor(last)
  local token = holder and (holder.foreign and holder.who or int(holder.token)) or ''
  local digest = redis.sha1hex((last or '') .. '|' .. token .. '|' .. (state_exists and int(version) or ''))
  return string.sub(digest, 1, 12)
end

-- A holder in a reply: who, token, weight, held for microseconds, remaining ms, note or false, handovers, marks,
-- request to finish: ms left or -1, by, why.
local function describe(lease, last)
  if lease.foreign then
    return { lease.who, tonumber(last) or 1, 1, 0, left(ends_of(lease)), false, 0, '', -1, false, false }
  end
  local note, asked, by, why = false, -1, false, false
  if has(lease, 'x') then
    local o = lease.owner
    local more = redis.call('HMGET', CLAIMS, o .. ':note', o .. ':asked', o .. ':by', o .. ':why')
    note, by, why = more[1], more[3], more[4]
    if more[2] then asked = left(tonumber(more[2])) end
  end
  return {
    lease.who, int(lease.token), lease.weight, math.max(0, now_us - lease.since), left(ends_of(lease)), note,
    lease.handovers, lease.marks, asked, by, why,
  }
end

read_state()
read_holder()
