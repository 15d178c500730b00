-- wait: whether the claim should ask again. Put after resource.lua.
--
-- A claim with a place in the queue is woken at this client from now on. For a claim without one, this client is woken
-- by the next change of the resource.
--
-- KEYS  1-9 as in resource.lua
-- ARGV  3 client  4 owner  5 cursor  6 how long to watch at the most, in ms
-- Reply 1 ask again; 0 it has a place: wait for a wake-up; 2 it has none: wait for any change

local owner = ARGV[4]
remove_expired()

local function should_ask_again()
  local rank = state_exists and redis.call('ZRANK', LINE, owner)
  if rank then
    set_client(owner, ARGV[3])
    local weight = weight_in(redis.call('HGET', CLAIMS, owner))
    return not pause and rank < WINDOW and fits(rank, weight, capacity)
  end
  -- MGET takes a key of another type for a missing one: GET fails for it.
  if not last then last = redis.call('GET', FENCE) end
  if cursor() ~= ARGV[5] then return true end
  local ends = after(tonumber(ARGV[6]))
  redis.call('ZADD', WATCH, ends, ARGV[3])
  watched, dirty, fresh = true, true, true
  keep_until(ends)
  return false
end

local ask_again = should_ask_again() or changed
finish()
if ask_again then return 1 end
return watched and not arrival_of(owner) and 2 or 0
