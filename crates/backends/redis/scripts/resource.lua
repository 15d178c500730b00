-- One resource: the functions that every verb uses, and reading it. Put after resource_variables.lua and before the file of
-- each verb; never run alone.
--
-- KEYS, ARGV and Reply as in resource_variables.lua and in the file of each verb

local function queue_length()
  if not queue_count then queue_count = state_exists and redis.call('ZCARD', LINE) or 0 end
  return queue_count
end

-- How many waiters are not silent.
local function live_count() return math.max(0, queue_length() - silent) end

local function queue_is_empty() return silent == 0 and not others_wait and queue_length() == 0 end

-- When a lease ends. The expiry of the owner key is read only if it is needed.
local function ends_of(lease)
  if not lease.ends then
    local ms = redis.call('PTTL', OWNER)
    lease.ends = ms >= 0 and math.floor(now) + ms or after(TEN_YEARS)
  end
  return lease.ends
end

-- Names the value of a foreign lock without showing it: the first 16 digits of the SHA-1 of a string, or of the DUMP of a
-- key of another type. 0 if the user may not DUMP: then nothing can be compared with it.
local function foreign_hash()
  if not holder.hash then
    local value = holder.value or redis.pcall('DUMP', OWNER)
    holder.hash = type(value) == 'string' and string.sub(redis.sha1hex(value), 1, 16) or NO_HASH
  end
  return holder.hash
end

-- The foreign lock in a reply: the type of its key, its hash, remaining ms or -1 without an expiry. Empty if there is none.
local function describe_foreign()
  if not (holder and holder.foreign) then return {} end
  return { redis.call('TYPE', OWNER).ok, foreign_hash(), redis.call('PTTL', OWNER) }
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

local function is_token(digits)
  local number = tonumber(digits)
  return number >= 1 and number < TOKEN_END
end

-- Fails, perhaps after writes: a key of the resource has a value that no script of leasehold writes. Only printable ASCII:
-- a reply that is not UTF-8 would break the connection.
local function corrupt(key, expected, found)
  found = string.gsub(string.sub(found, 1, 40), '[^%w%p ]', '?')
  error({ err = 'UNREADABLE key ' .. key .. ' is corrupt: expected ' .. expected .. ", found '" .. found .. "'" })
end

-- The lease of this owner in `shares`, or nil.
local function share_of(owner)
  if share_count == 0 then return nil end
  local ends = tonumber(redis.call('ZSCORE', SHARES, owner) or nil)
  local record = ends and redis.call('HGET', CLAIMS, owner)
  if not record then return nil end
  local weight, token, since, handovers, marks, who = string.match(record, '^(%d+)|(%d+)|(%d+)|(%d+)|(%a*)|(.*)$')
  if not weight or not is_token(token) then corrupt(CLAIMS, 'the record of a holder', record) end
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

-- The arrival number of this owner in the queue, or nil; and whether it is silent.
local function arrival_of(owner)
  if not state_exists or queue_count == 0 then return nil end
  local number = tonumber(redis.call('ZSCORE', LINE, owner) or nil)
  if number and number >= SILENT then return number - SILENT, true end
  return number, false
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

-- Returns how many clients received it. ADR 0014: on a cluster the channel is in the slot of the resource, and the message
-- stays in its shard.
local function publish(client, text)
  local verb = string.find(ARGV[2], '{', 1, true) and 'SPUBLISH' or 'PUBLISH'
  return redis.call(verb, ARGV[2] .. client, text)
end

-- The record of a waiter: what is before `listener`, `listener`, `client`, `heard`, `called`, and what is after it.
local function place_in(record)
  return string.match(record or '', '^(%d+|%d+|)(%+?%x*)|(%x*)|(%d+)|(%d*)(|.*)$')
end

-- Wakes a waiter at this listener; returns false if the listener is subscribed and yet nobody received it.
local function wake(owner, listener)
  local client = string.match(listener or '', '%x+')
  if not client then return true end
  return publish(client, owner .. '|' .. ARGV[1]) > 0 or client == listener
end

-- From now on this waiter is woken at this listener, which may be another one than that of the client that queued it. With
-- `heard` it was heard now, so it is not called any more. Returns its record as it was.
local function update_place(owner, listener, heard)
  local record = redis.call('HGET', CLAIMS, owner)
  local before, old_listener, client, old_heard, called, rest = place_in(record)
  if before and (heard or old_listener ~= listener) then
    local times = heard and int(now_us) .. '|' or old_heard .. '|' .. called
    redis.call('HSET', CLAIMS, owner, before .. listener .. '|' .. client .. '|' .. times .. rest)
  end
  return record
end

-- Removes an owner that is in the queue.
local function remove_place(owner)
  redis.call('ZREM', LINE, owner)
  redis.call('ZREM', PLACES, owner)
  redis.call('HDEL', CLAIMS, owner)
  first_waiter = nil
  if queue_count then queue_count = queue_count - 1 end
end

-- Removes an owner from the queue; returns false if it was not there. With `wake_it` the waiter is woken, because it
-- did not ask for this itself.
local function leave_queue(owner, wake_it)
  local arrival, is_silent = arrival_of(owner)
  if not arrival then return false end
  if wake_it then
    local _, listener = place_in(redis.call('HGET', CLAIMS, owner))
    wake(owner, listener)
  end
  remove_place(owner)
  if is_silent then silent = silent - 1 end
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
    -- Its lease has expired.
    extra, dirty, freed = false, true, true
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
    -- Counted again, in case that keys were deleted by hand.
    if silent > 0 then silent = redis.call('ZCOUNT', LINE, int(SILENT), '+inf') end
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

-- The first waiters that are not silent.
local function first_waiters(count)
  if silent == 0 then return redis.call('ZRANGE', LINE, 0, count - 1) end
  return redis.call('ZRANGEBYSCORE', LINE, '-inf', '(' .. int(SILENT), 'LIMIT', 0, count)
end

-- The first SILENCED_MAX waiters that are not silent.
local function near_waiters()
  local line = redis.call('ZRANGE', LINE, 0, SILENCED_MAX - 1, 'WITHSCORES')
  local owners, waiters = {}, {}
  for i = 1, #line, 2 do
    if tonumber(line[i + 1]) < SILENT then owners[#owners + 1] = line[i] end
  end
  local records = owners[1] and redis.call('HMGET', CLAIMS, unpack(owners))
  for number, owner in ipairs(owners) do
    local _, listener, client, heard, called = place_in(records[number])
    waiters[number] = {
      owner = owner, arrival = tonumber(line[2 * number]), listener = listener, client = client,
      heard = tonumber(heard), called = tonumber(called),
    }
  end
  return waiters
end

-- Makes those of these waiters silent for which `is_silent(waiter)` holds.
local function silence(waiters, is_silent)
  local changes = {}
  for _, waiter in ipairs(waiters) do
    if is_silent(waiter) then
      changes[#changes + 1] = int(waiter.arrival + SILENT)
      changes[#changes + 1] = waiter.owner
    end
  end
  if not changes[1] then return end
  redis.call('ZADD', LINE, 'XX', unpack(changes))
  silent, first_waiter = silent + #changes / 2, nil
  note_change()
end

-- An owner was heard. If it was silent, it stands where it stood before.
local function note_heard(owner)
  if silent == 0 then return end
  local arrival, is_silent = arrival_of(owner)
  if not is_silent then return end
  redis.call('ZADD', LINE, 'XX', int(arrival), owner)
  silent, look_is_sure, first_waiter = silent - 1, true, nil
  note_change()
end

-- Passes over the waiters that were called and did not answer in time, and with them over those of the same client that
-- were not heard for as long. `heard_owner` was heard now.
local function pass_over_silent(heard_owner)
  if not look or look > now_us then return end
  local waiters, late_clients, next_look = near_waiters(), {}, math.huge
  local function is_over(since) return since and since + ANSWER_WITHIN <= now_us end
  for number, waiter in ipairs(waiters) do
    waiter.is_late = number <= WINDOW and is_over(waiter.called) and waiter.owner ~= heard_owner
    if waiter.is_late and waiter.client ~= '' then late_clients[waiter.client] = true end
    -- One that was pushed out of the window is not passed over. Look again, because it may return.
    local is_outside = number > WINDOW and is_over(waiter.called)
    waiter.look = waiter.called and (is_outside and now_us or waiter.called) + ANSWER_WITHIN
  end
  silence(waiters, function(waiter)
    if waiter.owner == heard_owner then return false end
    local is_silent = waiter.is_late or (late_clients[waiter.client or ''] and is_over(waiter.heard))
    if not is_silent and waiter.look then next_look = math.min(next_look, waiter.look) end
    return is_silent
  end)
  looked, dirty = true, true
  look = next_look < math.huge and next_look or nil
  look_is_sure = look ~= nil and taken() >= capacity
end

-- Calls the waiters that can be granted now: the first ones. If a waiter is silent, also the others in the window that
-- have not been heard for a while. A listener that is subscribed and does not receive its message is gone: all of its
-- waiters are silent, and the next ones are called. `heard_owner` was heard now. With `only_wake` none is called: those
-- that can be granted are woken.
local function call_waiters(heard_owner, only_wake)
  local room = capacity - taken()
  if not state_exists or pause or queue_count == 0 or room <= 0 then return end
  local gone, before_gone, wake_again = {}, silent, freed
  repeat
    local whole_window = silent > 0 and not only_wake
    local owners = { first_waiter }
    if not first_waiter or room > 1 or whole_window then
      owners = first_waiters(whole_window and WINDOW or math.min(WINDOW, room))
    end
    if not owners[1] then
      queue_count = silent
      -- Without a waiter, `state` may not be needed any more.
      if silent == 0 and share_count == 0 then dirty = true end
      return
    end
    local records = redis.call('HMGET', CLAIMS, unpack(owners))
    local called_now, sum, found_gone = {}, 0, false
    for number, owner in ipairs(owners) do
      local before, listener, client, heard, called, rest = place_in(records[number])
      sum = sum + weight_in(before)
      local is_grantable = sum <= room
      if not is_grantable and (number == 1 or not whole_window) then break end
      local is_new = called == '' and (is_grantable or heard + ANSWER_WITHIN <= now_us)
      if before and (is_new or (is_grantable and wake_again)) then
        local is_gone = gone[listener] or not wake(owner, listener)
        if is_gone and owner ~= heard_owner and not only_wake and silent - before_gone < SILENCED_MAX then
          gone[listener], found_gone = true, true
        elseif is_new and not only_wake then
          called_now[#called_now + 1] = owner
          called_now[#called_now + 1] = before .. listener .. '|' .. client .. '|' .. heard .. '|' .. int(now_us) .. rest
          if not is_grantable and not look_is_sure then look_is_sure, dirty = true, true end
        end
      end
    end
    if called_now[1] then
      redis.call('HSET', CLAIMS, unpack(called_now))
      -- An earlier time stays: then the window is looked at once more than it need be, but `state` is not written now.
      if not look or look > now_us + ANSWER_WITHIN then look, dirty = now_us + ANSWER_WITHIN, true end
    end
    if found_gone then
      silence(near_waiters(), function(waiter) return gone[waiter.listener or ''] and waiter.owner ~= heard_owner end)
    end
    wake_again = false
  until not found_gone
end

-- Ends every verb: calls waiters, wakes watchers, and writes `state`. `how` is `granted` if the claim was granted, `from
-- queue` if it also had a place, `renewal` if the verb does not look at the queue. `heard_owner` was heard now.
local function finish(how, heard_owner)
  local from_queue = how == 'from queue'
  if how == 'renewal' then
    -- The next verb calls those that are only woken here.
    if freed and not queue_is_empty() then
      call_waiters(nil, true)
      look, dirty = now_us, true
    end
  elseif not (from_queue or how == 'granted') or freed or looked or silent > 0 then
    call_waiters(heard_owner)
  elseif from_queue and taken() < capacity and live_count() >= WINDOW then
    -- The waiters that could be granted before were called then. Only the last one in the window is new.
    call_waiters(heard_owner)
  end
  if changed and watched then
    for _, client in ipairs(redis.call('ZRANGE', WATCH, 0, -1)) do publish(client, '*|' .. ARGV[1]) end
    redis.call('DEL', WATCH)
    watched, dirty = false, true
  end
  -- Without a waiter, `state` may not be needed any more.
  local left_empty = from_queue and queue_is_empty()
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
    .. ' silent=' .. int(silent) .. ' look=' .. (look and int(look) or '-') .. (look and look_is_sure and '!' or '')
  redis.call('SET', STATE, text, 'PXAT', int(expire_at))
  if expire_at ~= keys_until then
    for _, key in ipairs({ SHARES, CLAIMS, LINE, PLACES, WATCH }) do redis.call('PEXPIREAT', key, int(expire_at)) end
  end
  state_exists = true
end

-- A number for this state of the resource. Any change gives another one.
local function cursor()
  local token = holder and (holder.foreign and foreign_hash() or int(holder.token)) or ''
  local digest = redis.sha1hex((last or '') .. '|' .. token .. '|' .. (state_exists and int(version) or ''))
  return string.sub(digest, 1, 12)
end

-- A holder in a reply: who, token, weight, held for microseconds, remaining ms, note or false, handovers, marks,
-- request to finish: ms left or -1, by, why.
local function describe(lease)
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
local is_other_type = not value[1] and redis.call('EXISTS', OWNER) == 1
if not value[3] then redis.call('GET', STATE) end -- fails for a key of another type
last, tombstone = value[2], value[4]
if value[3] then
  local c, h, v, a, e, u, p, x, w, s, l, is_sure = string.match(value[3], STATE_PATTERN)
  if not c then
    -- Only printable ASCII: a reply that is not UTF-8 would break the connection.
    local found = string.gsub(string.sub(value[3], 1, 40), '[^%w%p ]', '?')
    return redis.error_reply('CORRUPT key ' .. STATE .. " is corrupt: expected capacity=1 held=0 ..., found '" .. found .. "'")
  end
  capacity, held, version, arrivals = tonumber(c), tonumber(h), tonumber(v), tonumber(a)
  next_end, keys_until, pause = tonumber(e) or math.huge, tonumber(u), tonumber(p)
  extra, watched, state_exists = x ~= '-' and x, w == '1', true
  silent, look, look_is_sure = tonumber(s), tonumber(l), is_sure == '!'
  if held > 0 then share_count = redis.call('ZCARD', SHARES) end
  if share_count == 0 then held = 0 end
end
if is_other_type then
  holder = { foreign = true, marks = '', in_owner_key = true }
elseif value[1] then
  local id, token, since, handovers, marks, who = string.match(value[1], '^(%x+)|(%d+)|(%d+)|(%d+)|(%a*)|(.*)$')
  if id and #id == 32 and is_token(token) then
    holder = {
      owner = id, token = tonumber(token), since = tonumber(since), handovers = tonumber(handovers), marks = marks,
      who = who, weight = 1, in_owner_key = true,
    }
  else
    -- Another program's SET NX: it holds the resource. Its value may be the secret that releases it, so no reply has it.
    holder = { foreign = true, value = value[1], marks = '', in_owner_key = true }
  end
end
