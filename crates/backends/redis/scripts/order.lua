-- order: an operator's command, and its record in the audit stream, in one step. Put after resource.lua.
--
-- KEYS  1-8 as in resource.lua; 9 the tombstone of the owner in ARGV 4; 10 the audit stream of the resource
-- ARGV  3 listener  4 the owner of the holder that is meant, if the caller knows it, or empty
--       5 the token of the holder that is meant, or 0 for the newest one
--       6 by  7 why  8 command  9 its number: ms, or a capacity; for evict-foreign the hash of the lock
-- Reply done
--       who, owner: another owner than ARGV 4 is meant; call again with it. Nothing was done
--       not_that, token of the newest grant or 0: no holder has the token in ARGV 5

local wanted, command, number = tonumber(ARGV[5]), ARGV[8], tonumber(ARGV[9])
-- How long and how many audit records are kept.
local AUDIT_MS, AUDIT_RECORDS = 30 * 86400 * 1000, 1000
-- The least ttl of the tombstone of an evicted owner: longer than a late request can be on its way.
local TOMBSTONE_MS_MIN = 180000
remove_expired()
pass_over_silent()

local newest, meant
local function consider(lease)
  if not newest or lease.token > newest.token then newest = lease end
  if lease.token == wanted then meant = lease end
end
if holder and not holder.foreign then consider(holder) end
if share_count > 0 then
  for _, owner in ipairs(redis.call('ZRANGE', SHARES, 0, -1)) do
    -- Without a record, `claims` was deleted by hand.
    local lease = share_of(owner)
    if lease then consider(lease) end
  end
end
if wanted == 0 then meant = newest end

-- Carries out the command; returns false if there is no such holder.
local function carry_out()
  if wanted ~= 0 and not meant then return false end
  if command == 'pause' then
    pause = after(number)
    keep_until(pause)
  elseif command == 'resume' then
    pause, freed = nil, true
  elseif command == 'resize' then
    if not newest and queue_is_empty() then return false end
    capacity, freed, look_is_sure = number, true, true
    -- With extras, a plain holder keeps `state`, which has the capacity.
    if holder and not holder.foreign then
      add_extra(holder)
      store(holder)
    end
  elseif command == 'evict-foreign' then
    if not (holder and holder.foreign) then return false end
    -- Fails if the user may not DUMP: then the lock cannot be compared.
    if foreign_hash() == NO_HASH then redis.call('DUMP', OWNER) end
    if foreign_hash() ~= ARGV[9] then return false end
    end_lease(holder)
  elseif not meant then
    return false
  elseif command == 'ask' then
    local o = meant.owner
    add_extra(meant, o .. ':asked', int(after(number)), o .. ':by', ARGV[6], o .. ':why', ARGV[7])
    store(meant)
  elseif command == 'evict' then
    if not has(meant, 'e') then meant.marks = meant.marks .. 'e' end
    store(meant)
  else -- evict-now
    write_tombstone(GRAVE, 'e', math.max(2 * left(ends_of(meant)), TOMBSTONE_MS_MIN))
    end_lease(meant)
  end
  note_change()
  return true
end

-- The key of the tombstone must be that of the holder: see try_order in order.rs.
if command == 'evict-now' and meant and meant.owner ~= ARGV[4] then
  finish()
  return { 'who', meant.owner }
end
local done = carry_out()
local function record(id)
  return redis.pcall('XADD', KEYS[10], 'MAXLEN', '~', AUDIT_RECORDS, id, 'at', int(now_us), 'token', int(wanted), 'by',
    ARGV[6], 'why', ARGV[7], 'command', command, 'done', done and 1 or 0)
end
-- The id is in microseconds, so that the records of several resources can be sorted. If the clock went back, such an id
-- is refused: then Redis chooses one after the last.
if type(record(int(now_us) .. '-*')) == 'table' then record('*') end
redis.call('PEXPIRE', KEYS[10], AUDIT_MS)
finish()
if done then return { 'done' } end
return { 'not_that', newest and int(newest.token) or 0 }
