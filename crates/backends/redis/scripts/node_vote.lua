-- vote, claim and join: asks one node for the lock, for a number, or for a part of a grant that a majority has given.
--
-- KEYS  1 owner  2 register  3 the birth mark  4 the owner's grave  5 the attempt's grave
-- ARGV  1 vote, claim or join  2 owner  3 attempt  4 ttl ms  5 proposal  6 who  7 note, after an n; empty if none
--       8 the run of this server  9 how far a proposal may be from the clock, in microseconds  10 the retention, in ms
-- Reply the clock in microseconds, then one of
--       yours, number, remaining ms
--       held, number, held for microseconds, remaining ms, attempt, who, note after an n
--       free | buried | far | long, the gate in ms | novote

local verb, owner, attempt, ttl, proposal = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local skew, retention = tonumber(ARGV[9]), tonumber(ARGV[10])
local now = clock()

local function answer(...) return { int(now), ... } end

local mark = parse_mark(get(KEYS[3]))
if not mark or mark.standing ~= 'voting' or mark.run ~= ARGV[8] then return answer('novote') end
if ttl > mark.gate then return answer('long', mark.gate) end
if redis.call('EXISTS', KEYS[4], KEYS[5]) > 0 then return answer('buried') end

local lock = read_lock()
if lock and lock.owner ~= owner then return answer('held', seen(lock, now)) end

-- The same claim asks again: the same grant, with what remains of it.
if lock and verb ~= 'claim' then
  local remaining = left()
  if lock.attempt ~= attempt or (verb == 'join' and lock.number ~= ARGV[5]) then
    lock.attempt, lock.number = attempt, verb == 'join' and ARGV[5] or lock.number
    write_lock(lock, remaining)
  end
  return answer('yours', lock.number, remaining)
end
if not lock and verb == 'claim' then return answer('free') end

local function take(number)
  write_lock({ owner = owner, number = number, since = now, attempt = attempt, who = ARGV[6], note = ARGV[7] }, ttl)
  return answer('yours', number, ttl)
end

if verb == 'join' then return take(ARGV[5]) end

local last, of = string.match(get(KEYS[2]) or '', '^(%d+)|(%x*)$')
last = tonumber(last or 0)
if math.abs(proposal - now) > skew and (last == 0 or proposal > last + skew) then return answer('far') end

-- Above every number that was accepted here; on a lock that it has, its own last one will do.
local least = (lock and of == owner) and last or last + 1
local number = math.max(proposal, least)
if number >= 9007199254740992 then return answer('far') end
local text = int(number)
redis.call('SET', KEYS[2], text .. '|' .. owner, 'PX', int(retention + math.max(0, math.ceil((number - now) / 1000))))
if not lock then return take(text) end
local remaining = left()
lock.number, lock.attempt = text, attempt
write_lock(lock, remaining)
return answer('yours', text, remaining)
