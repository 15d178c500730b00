-- wait: whether the claim should ask again. Put after resource.lua.
--
-- A claim with a place in the queue is woken at this listener from now on. For a claim without one, this listener is woken
-- by the next change of the resource. This is no answer of a waiter that was called: it should ask again.
--
-- KEYS  1-9 as in resource.lua
-- ARGV  3 listener  4 owner  5 cursor  6 how long to watch at the most, in ms
-- Reply 1 ask again; 0 it has a place: wait for a wake-up; 2 it has none: wait for any change

local owner = ARGV[4]
remove_expired()
pass_over_silent()

local function should_ask_again()
  local rank = state_exists and redis.call('ZRANK', LINE, owner)
  if rank then
    local record = update_place(owner, ARGV[3])
    local _, _, _, _, called = place_in(record)
    if (called and called ~= '') or (silent > 0 and rank >= live_count()) then return true end
    return not pause and rank < WINDOW and fits(rank, weight_in(record), capacity)
  end
  -- MGET takes a key of another type for a missing one: GET fails for it.
  if not last then last = redis.call('GET', FENCE) end
  if cursor() ~= ARGV[5] then return true end
  local ends = after(tonumber(ARGV[6]))
  redis.call('ZADD', WATCH, ends, string.match(ARGV[3], '%x+'))
  watched, dirty, fresh = true, true, true
  keep_until(ends)
  return false
end

local ask_again = should_ask_again() or changed
finish()
if ask_again then return 1 end
return watched and not arrival_of(owner) and 2 or 0
