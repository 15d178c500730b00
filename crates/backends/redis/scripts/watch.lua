-- wait: whether there is reason to ask again. A place is woken at this client from now on; a claim without one leaves word
-- that this client watches.
--
-- KEYS  1-9 as in resource.lua
-- ARGV  3 client  4 owner  5 cursor  6 for how long at the most, in ms
-- Reply 1 ask again; 0 it has a place: wait for a message; 2 it has none: wait for any change

local owner = ARGV[4]
settle()

local function is_news()
  local rank = line_length > 0 and redis.call('ZRANK', LINE, owner)
  if rank then
    wait_at(owner, ARGV[3])
    local weight = weight_of_place(owner)
    return not pause and rank < WINDOW and fits(rank, weight, capacity)
  end
  if cursor(redis.call('GET', FENCE)) ~= ARGV[5] then return true end
  local ends = after(tonumber(ARGV[6]))
  redis.call('ZADD', WATCH, ends, ARGV[3])
  watched, dirty, fresh = 1, true, true
  lasts(ends)
  return false
end

local news = is_news() or changed
finish()
if news then return 1 end
return watched and not arrival_of(owner) and 2 or 0
