-- vote, claim and join: asks one node for its vote. Put after node.lua.
--
-- vote: for the lock and a number.  claim: for a number, on a lock that the owner has here.
-- join: for the lock and number of a grant that a majority has given (ADR 0017).
--
-- 1. A node without a valid birth mark of its present run has no vote (ADR 0016).
-- 2. Refuse a ttl longer than the gate, and an owner or attempt with a tombstone.
-- 3. Another owner has the lock: say who.
-- 4. The same owner asks again: the same number, for the newest attempt.
-- 5. Accept the proposal, or the next number above all that were accepted here; store it in the register and in the
--    lock.
--
-- KEYS  1 owner  2 register  3 the birth mark  4 the tombstone of the owner  5 the tombstone of the attempt
-- ARGV  1 vote, claim or join  2 owner  3 attempt  4 ttl ms  5 proposal  6 who  7 note, after an n; empty if none
--       8 the run of this server  9 how far a proposal may be from the clock, in microseconds  10 the retention, in ms
-- Reply the clock in microseconds, then one of
--       yours, number, remaining ms
--       held, number, held for microseconds, remaining ms, attempt, who, note after an n
--       free: claim, and the owner has no lock here
--       buried: there is a tombstone
--       far: the proposal is too far from the clock
--       long, the gate in ms: no ttl may be longer
--       novote

local verb, owner, attempt, ttl, proposal = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local skew, retention = tonumber(ARGV[9]), tonumber(ARGV[10])
local TOKEN_END = 9007199254740992 -- 2^53: above, Lua's numbers are no longer exact
local now = clock()

local function vote(...) return { int(now), ... } end

local mark = parse_mark(get(KEYS[3]))
if not mark or mark.standing ~= 'voting' or mark.run ~= ARGV[8] then return vote('novote') end
if ttl > mark.gate then return vote('long', mark.gate) end
if redis.call('EXISTS', KEYS[4], KEYS[5]) > 0 then return vote('buried') end

local lock = read_lock()
if lock and lock.owner ~= owner then return vote('held', describe(lock, now)) end

-- A lock belongs to the newest attempt of its owner: if an earlier attempt is executed late and then undone, the lock
-- must stay. Attempts are texts of one length, so they can be compared as texts.
if lock and lock.attempt > attempt then attempt = lock.attempt end

-- The same claim asks again: the same number, with the remaining time.
if lock and verb ~= 'claim' then
  local remaining = left()
  if lock.attempt ~= attempt or (verb == 'join' and lock.number ~= ARGV[5]) then
    lock.attempt, lock.number = attempt, verb == 'join' and ARGV[5] or lock.number
    write_lock(lock, remaining)
  end
  return vote('yours', lock.number, remaining)
end
if not lock and verb == 'claim' then return vote('free') end

local function take(number)
  write_lock({ owner = owner, number = number, since = now, attempt = attempt, who = ARGV[6], note = ARGV[7] }, ttl)
  return vote('yours', number, ttl)
end

if verb == 'join' then return take(ARGV[5]) end

local last, last_owner = string.match(get(KEYS[2]) or '', '^(%d+)|(%x*)$')
last = tonumber(last or 0)
if math.abs(proposal - now) > skew and (last == 0 or proposal > last + skew) then return vote('far') end

-- Above every number that was accepted here. If the owner has the lock and the last number, that number is enough.
local least = (lock and last_owner == owner) and last or last + 1
local number = math.max(proposal, least)
if number >= TOKEN_END then return vote('far') end
local text = int(number)
redis.call('SET', KEYS[2], text .. '|' .. owner, 'PX', int(retention + math.max(0, math.ceil((number - now) / 1000))))
if not lock then return take(text) end
local remaining = left()
lock.number, lock.attempt = text, attempt
write_lock(lock, remaining)
return vote('yours', text, remaining)
