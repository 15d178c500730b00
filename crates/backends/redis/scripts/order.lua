-- order: the operator's word, and its record in the audit trail, in one step.
--
-- KEYS  1-8 as in resource.lua; 9 the grave of the owner in ARGV 4; 10 the audit trail of the resource, a stream
-- ARGV  3 client  4 the owner who is meant, as far as the caller knows, or empty  5 token, or 0: whoever is there
--       6 by  7 why  8 command  9 its number: ms, or a capacity
-- Reply done
--       who, owner: someone else is meant; call again and say so
--       not_that, token of the newest grant or 0

local wanted, command, number = tonumber(ARGV[5]), ARGV[8], tonumber(ARGV[9])
local KEEP_MS, KEPT = 30 * 86400 * 1000, 1000
settle()

local newest, meant
local function consider(seat)
  if not newest or seat.token > newest.token then newest = seat end
  if seat.token == wanted then meant = seat end
end
if holder and not holder.stranger then consider(holder) end
if share_count > 0 then
  for _, owner in ipairs(redis.call('ZRANGE', SHARES, 0, -1)) do consider(share_of(owner)) end
end
if wanted == 0 then meant = newest end

local function obey()
  if wanted ~= 0 and not meant then return false end
  if command == 'pause' then
    pause = after(number)
    lasts(pause)
  elseif command == 'resume' then
    pause, freed = nil, true
  elseif command == 'resize' then
    if not newest and line_length == 0 then return false end
    capacity, freed = number, true
    if holder and not holder.stranger then
      add_extra(holder)
      store(holder)
    end
  elseif not meant then
    return false
  elseif command == 'ask' then
    local o = meant.owner
    add_extra(meant, o .. ':asked', int(after(number)), o .. ':by', ARGV[6], o .. ':why', ARGV[7])
    store(meant)
  elseif command == 'evict' then
    if not has(meant, 'e') then meant.marks = meant.marks .. 'e' end
    store(meant)
  else
    bury(GRAVE, 'e', math.max(2 * left(ends_of(meant)), 180000))
    stand_up(meant)
  end
  note_change()
  return true
end

if command == 'evict-now' and meant and meant.owner ~= ARGV[4] then
  finish()
  return { 'who', meant.owner }
end
local done = obey()
local function record(id)
  return redis.pcall('XADD', KEYS[10], 'MAXLEN', '~', KEPT, id, 'at', int(now_us), 'token', int(wanted), 'by', ARGV[6],
    'why', ARGV[7], 'command', command, 'done', done and 1 or 0)
end
-- By the microsecond, so that the trails of several resources can be put in order. If the clock went back: after the last.
if type(record(int(now_us) .. '-*')) == 'table' then record('*') end
redis.call('PEXPIRE', KEYS[10], KEEP_MS)
finish()
if done then return { 'done' } end
return { 'not_that', newest and int(newest.token) or 0 }
