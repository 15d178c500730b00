-- The beginning of most scripts of a quorum node: the clock and the lock. Never run alone.
--
-- The rules that these scripts repeat are `NodeModel` in the crate leasehold-core; a test compares both.
--
-- KEYS  1 the lock of a resource (owner)
-- ARGV  as in the file of each verb
--
-- The lock is `owner|number|since|xattempt|length of who|who`, followed by the note, after an n, if there is one. Times
-- are in microseconds. The lock ends when its key expires. Any other value or type is the lock of another program. The register
-- is `number|owner`; the birth mark is `v1|set|size|gate in ms|run|durable|standing` (ADR 0016).

local TOKEN_END = 9007199254740992 -- 2^53: above, Lua's numbers are no longer exact

-- What stands for the remaining time of a key that does not expire: a year, in ms.
local NO_EXPIRY = 31536000000

-- Without a format, Lua would write a large number as 1.7e+15.
local function int(number) return string.format('%.0f', number) end

local function clock()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end

-- The value of a key, or nil. (GET returns false for a missing key.)
local function get(key)
  local value = redis.call('GET', key)
  if value then return value end
end

-- The lock, or nil. A lock of another program has the owner '', and its value if that is a string.
local function read_lock()
  local value = redis.call('MGET', KEYS[1])[1]
  if not value then
    -- MGET takes a key of another type for a missing one.
    return redis.call('EXISTS', KEYS[1]) == 1 and { owner = '' } or nil
  end
  local owner, number, since, attempt, length, rest =
    string.match(value, '^(%x+)|(%d+)|(%d+)|x(%x+)|(%d+)|(.*)$')
  local token = tonumber(number or 0)
  if token < 1 or token >= TOKEN_END then return { owner = '', value = value } end
  length = tonumber(length)
  return {
    owner = owner, number = number, since = tonumber(since), attempt = attempt,
    who = string.sub(rest, 1, length), note = string.sub(rest, length + 1),
  }
end

local function write_lock(lock, ttl_ms)
  local value = lock.owner .. '|' .. lock.number .. '|' .. int(lock.since) .. '|x' .. lock.attempt .. '|' .. #lock.who
    .. '|' .. lock.who .. lock.note
  redis.call('SET', KEYS[1], value, 'PX', int(math.max(1, ttl_ms)))
end

-- The remaining time of the lock, in ms.
local function left()
  local ms = redis.call('PTTL', KEYS[1])
  return ms >= 0 and ms or NO_EXPIRY
end

-- A holder in a reply: number, held for in microseconds, remaining ms, attempt, who, note after an n.
local function describe(lock, now)
  return lock.number, int(math.max(0, now - lock.since)), left(), lock.attempt, lock.who, lock.note
end

-- The lock of another program in a reply: foreign, type, hash, remaining ms or -1. As foreign_hash and describe_foreign in
-- resource.lua: no reply has the value, which may be the secret that releases the lock.
local function describe_foreign(lock)
  local value = lock.value or redis.pcall('DUMP', KEYS[1])
  local hash = type(value) == 'string' and string.sub(redis.sha1hex(value), 1, 16) or '0000000000000000'
  return 'foreign', redis.call('TYPE', KEYS[1]).ok, hash, redis.call('PTTL', KEYS[1])
end

local function parse_mark(text)
  local set, size, gate, run, durable, standing =
    string.match(text or '', '^v1|(%x*)|(%d+)|(%d+)|([^|]*)|([01])|([%a:%d]+)$')
  if set then return { gate = tonumber(gate), run = run, standing = standing } end
end

-- The error of a register that is a string and not of leasehold. Only printable ASCII: a reply that is not UTF-8 would break the
-- connection.
local function corrupt_register(key, value)
  local found = string.gsub(string.sub(value, 1, 40), '[^%w%p ]', '?')
  return redis.error_reply('CORRUPT key ' .. key .. " is corrupt: expected number|owner, found '" .. found .. "'")
end
