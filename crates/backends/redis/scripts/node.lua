-- What every script of a node of a quorum begins with: its clock, and the lock as it is. The rule that these scripts
-- repeat is `NodeModel` in the crate leasehold-core; a test plays both.
--
-- KEYS  1 the lock's owner of a resource
--
-- The lock is `owner|number|since|xattempt|length of who|who`, and after that the note, after an n, if there is one:
-- times in microseconds. It ends with its key. Whatever else stands there is a stranger's, who holds it.
-- The register is `number|owner`; the mark is `v1|set|size|gate in ms|run|durable|standing`.

local function int(number) return string.format('%.0f', number) end

local function clock()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end

-- The value, or nothing.
local function get(key)
  local value = redis.call('GET', key)
  if value then return value end
end

local function read_lock()
  local value = get(KEYS[1])
  if not value then return nil end
  local owner, number, since, attempt, length, rest =
    string.match(value, '^(%x+)|(%d+)|(%d+)|x(%x+)|(%d+)|(.*)$')
  if not owner then return { owner = '', number = '1', since = 0, attempt = '0', who = 'not leasehold', note = '' } end
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

-- How much is left of the lock, in ms; a stranger's may have no end.
local function left()
  local ms = redis.call('PTTL', KEYS[1])
  return ms >= 0 and ms or 31536000000
end

-- A holder, as others see it: number, held for in microseconds, remaining ms, attempt, who, note after an n.
local function seen(lock, now)
  return lock.number, int(math.max(0, now - lock.since)), left(), lock.attempt, lock.who, lock.note
end

local function parse_mark(text)
  local set, size, gate, run, durable, standing =
    string.match(text or '', '^v1|(%x*)|(%d+)|(%d+)|([^|]*)|([01])|([%a:%d]+)$')
  if set then return { gate = tonumber(gate), run = run, standing = standing } end
end
