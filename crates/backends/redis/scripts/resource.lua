-- One resource: the functions that every verb uses, and reading it. Put after resource_variables.lua and before the file of
-- each verb; never run alone.
--
-- KEYS, ARGV and Reply as in resource_variables.lua and in the file of each verb

local function queue_length()
  if not queue_count then queue_count = state_exists and redis.call('ZCARD', LINE) or 0 end
  return queue_count
end

local function queue_is_empty() return not others_wait and queue_length() == 0 end

-- When a lease ends. The expiry of the owner key is read only if it is needed.
local function ends_of(lease)
  if not lease.ends then
    local ms = redis.call('PTTL', OWNER)
    lease.ends = ms >= 0 and math.floor(now) + ms or after(TEN_YEARS)
  end
  return lease.ends
end

-- Something changed that neither the fence nor the holder in the owner key shows.
local function note_change()
  version = version + 1
  changed, dirty = true, true
end

-- There is content until `ends`: no key may expire before.
local function keep_until(ends) content_until = math.max(content_until, ends) end

-- A share or a place ends then.
local function note_end(ends)
  keep_until(ends)
  if ends < next_end then next_end, dirty = ends, true end
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
  if not state_exists or queue_count == 0 then return nil end
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
    holder, changed = nil, true
  else
    redis.call('ZREM', SHARES, lease.owner)
    redis.call('HDEL', CLAIMS, lease.owner)
    held, share_count = held - lease.weight, share_count - 1
    note_change()
  end
  if has(lease, 'x') then
    forget_extras(lease.owner)
    if extra == lease.owner then extra, dirty = false, true end
  end
  freed = true
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

-- Removes an owner that is in the queue.
local function remove_place(owner)
  redis.call('ZREM', LINE, owner)
  redis.call('ZREM', PLACES, owner)
  redis.call('HDEL', CLAIMS, owner)
  if queue_count then queue_count = queue_count - 1 end
end

-- Removes an owner from the queue; returns false if it was not there. With `wake_it` the waiter is woken, because it
-- did not ask for this itself.
local function leave_queue(owner, wake_it)
  if not arrival_of(owner) then return false end
  if wake_it then wake(owner, redis.call('HGET', CLAIMS, owner) or '') end
  remove_place(owner)
  freed = true
  note_change()
  return true
end

local function first_end(key) return tonumber(redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]) or math.huge end

-- Removes expired leases, places and pauses: at most SWEEP of each, the next call removes the rest.
local function remove_expired()
  if not state_exists then return end
  if extra and not (holder and holder.owner == extra) then
    forget_extras(extra)
    extra, dirty = false, true
  end
  if next_end <= now then
    if share_count > 0 then
      for _, owner in ipairs(redis.call('ZRANGEBYSCORE', SHARES, '-inf', math.floor(now), 'LIMIT', 0, SWEEP)) do
        end_lease(share_of(owner) or { owner = owner, weight = 0, marks = '' })
      end
    end
    for _, owner in ipairs(redis.call('ZRANGEBYSCORE', PLACES, '-inf', math.floor(now), 'LIMIT', 0, SWEEP)) do
      -- Without an arrival, `line` was deleted by hand.
      if not leave_queue(owner, true) then redis.call('ZREM', PLACES, owner) end
    end
    next_end, dirty = math.min(first_end(PLACES), share_count > 0 and first_end(SHARES) or math.huge), true
  end
  if pause and pause <= now then
    pause, freed = nil, true
    note_change()
  end
end

local function write_tombstone(key, why, ms)
  redis.call('SET', key, why, 'PX', math.max(1, ms))
end

-- Writes a lease that was changed; with `ends` also when it ends.
local function store(lease, ends)
  local record = '|' .. int(lease.token) .. '|' .. int(lease.since) .. '|' .. lease.handovers .. '|' .. lease.marks .. '|'
    .. lease.who
  if lease.in_owner_key and ends then
    redis.call('SET', OWNER, lease.owner .. record, 'PX', math.max(1, ends - math.ceil(now)))
  elseif lease.in_owner_key then
    redis.call('SET', OWNER, lease.owner .. record, 'XX', 'KEEPTTL')
  else
    if ends then
      redis.call('ZADD', SHARES, 'XX', ends, lease.owner)
      note_end(ends)
    end
    redis.call('HSET', CLAIMS, lease.owner, int(lease.weight) .. record)
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

-- The weight in the record of a waiter.
local function weight_in(record) return tonumber(string.match(record or '', '^(%d+)|')) or 0 end

-- The admission rule: whether a claim of this weight fits behind the first `rank` waiters.
local function fits(rank, weight, of)
  local sum = taken() + weight
  -- Every waiter weighs at least 1, so most queues need not be read.
  if rank > WINDOW or sum + rank > of then return false end
  if rank == 0 then return true end
  for _, owner in ipairs(redis.call('ZRANGE', LINE, 0, rank - 1)) do
    sum = sum + weight_in(redis.call('HGET', CLAIMS, owner))
    if sum > of then return false end
  end
  return true
end

-- Calls `visit(owner, record, number)` for each waiter that can be granted now.
local function each_grantable(visit)
  local sum = taken()
  if not state_exists or pause or sum >= capacity then return end
  local most = math.min(WINDOW, capacity - sum)
  local head = redis.call('ZRANGE', LINE, 0, most - 1)
  -- An empty queue: `state` may not be needed any more.
  if #head == 0 then queue_count, dirty = 0, true end
  for number, owner in ipairs(head) do
    local record = redis.call('HGET', CLAIMS, owner) or ''
    sum = sum + weight_in(record)
    if sum > capacity then return end
    visit(owner, record, number)
  end
end

-- Ends every verb: wakes waiters and watchers, and writes `state`. `granted_from_queue`: the claim had a place.
local function finish(granted_from_queue)
  if freed then
    each_grantable(wake)
  elseif granted_from_queue and taken() < capacity and queue_length() >= WINDOW then
    -- The waiters that could be granted before were woken then. Only the last one in the window is new.
    each_grantable(function(owner, record, number) if number == WINDOW then wake(owner, record) end end)
  end
  if changed and watched then
    for _, client in ipairs(redis.call('ZRANGE', WATCH, 0, -1)) do publish(client, '*|' .. ARGV[1]) end
    redis.call('DEL', WATCH)
    watched, dirty = false, true
  end
  -- Without a waiter, `state` may not be needed any more.
  local left_empty = granted_from_queue and queue_is_empty()
  if not dirty and not left_empty then return end
  local needed = share_count > 0 or pause or watched or (extra and holder and holder.owner == extra) or not queue_is_empty()
  if not needed then
    -- Back to a plain holder or none. ADR 0038.
    if state_exists then redis.call('DEL', STATE, CLAIMS) end
    state_exists = false
    return
  end
  if not state_exists then fresh = true end
  local expire_at = keys_until
  if content_until > keys_until or fresh then expire_at = math.max(content_until, keys_until, math.ceil(now)) + SLACK end
  -- Read below with STATE_PATTERN, and in slot_migration.rs.
  local text = 'capacity=' .. int(capacity) .. ' held=' .. int(held) .. ' version=' .. int(version) .. ' arrivals='
    .. int(arrivals) .. ' ends=' .. (next_end < math.huge and int(next_end) or '-') .. ' until=' .. int(expire_at)
    .. ' pause=' .. (pause and int(pause) or '-') .. ' extra=' .. (extra or '-') .. ' watched=' .. (watched and '1' or '-')
  redis.call('SET', STATE, text, 'PXAT', int(expire_at))
  if expire_at ~= keys_until then
    for _, key in ipairs({ SHARES, CLAIMS, LINE, PLACES, WATCH }) do redis.call('PEXPIREAT', key, int(expire_at)) end
  end
  state_exists = true
end

-- A number for this state of the resource. Any change gives another one.
local function cursor()
  local token = holder and (holder.foreign and holder.who or int(holder.token)) or ''
  local digest = redis.sha1hex((last or '') .. '|' .. token .. '|' .. (state_exists and int(version) or ''))
  return string.sub(digest, 1, 12)
end

-- A holder in a reply: who, token, weight, held for microseconds, remaining ms, note or false, handovers, marks,
-- request to finish: ms left or -1, by, why.
local function describe(lease)
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

-- Read the resource.
local value = redis.call('MGET', OWNER, FENCE, STATE, GRAVE)
-- MGET takes a key of another type for a missing one, so a missing key is believed only if it does not exist. The verbs
-- that need the fence check it in the same way.
if not value[1] and redis.call('EXISTS', OWNER) == 1 then value[1] = 'not a string' end
if not value[3] then redis.call('GET', STATE) end -- fails for a key of another type
last, tombstone = value[2], value[4]
if value[3] then
  local c, h, v, a, e, u, p, x, w = string.match(value[3], STATE_PATTERN)
  if not c then
    -- Only printable ASCII: a reply that is not UTF-8 would break the connection.
    local found = string.gsub(string.sub(value[3], 1, 40), '[^%w%p ]', '?')
    return redis.error_reply('CORRUPT key ' .. STATE .. " is corrupt: expected capacity=1 held=0 ..., found '" .. found .. "'")
  end
  capacity, held, version, arrivals = tonumber(c), tonumber(h), tonumber(v), tonumber(a)
  next_end, keys_until, pause = tonumber(e) or math.huge, tonumber(u), tonumber(p)
  extra, watched, state_exists = x ~= '-' and x, w == '1', true
  if held > 0 then share_count = redis.call('ZCARD', SHARES) end
  if share_count == 0 then held = 0 end
end
if value[1] then
  local id, token, since, handovers, marks, who = string.match(value[1], '^(%x+)|(%d+)|(%d+)|(%d+)|(%a*)|(.*)$')
  if id and #id == 32 then
    holder = {
      owner = id, token = tonumber(token), since = tonumber(since), handovers = tonumber(handovers), marks = marks,
      who = who, weight = 1, in_owner_key = true,
    }
  else
    -- Another program's SET NX: it holds the resource.
    holder = { foreign = true, who = string.sub(value[1], 1, 200), weight = 1, in_owner_key = true }
  end
end
