-- inspect: looks at one resource, and changes nothing. What has ended is left out.
--
-- KEYS  1-9 as in resource.lua
-- ARGV  3 how many holders and places to list at the most
-- Reply capacity, holders in all, places in all, last token or nil, pause: ms left or -1, cursor, [holder…],
--       [who, weight, waited in microseconds, remaining ms]…

local most = tonumber(ARGV[3])
local last = redis.call('GET', FENCE)
local seats = {}
if holder then seats[1] = holder end
if share_count > 0 then
  for _, owner in ipairs(redis.call('ZRANGEBYSCORE', SHARES, '(' .. int(math.floor(now)), '+inf')) do
    seats[#seats + 1] = share_of(owner)
  end
end
table.sort(seats, function(a, b) return (a.token or 0) < (b.token or 0) end)
local holders, places = {}, {}
for i = 1, math.min(most, #seats) do holders[i] = seen(seats[i], last) end
local waiting = 0
if line_length > 0 then
  waiting = redis.call('ZCOUNT', PLACES, '(' .. int(math.floor(now)), '+inf')
  local dead = line_length - waiting
  for _, owner in ipairs(redis.call('ZRANGE', LINE, 0, most + dead - 1)) do
    local ends = tonumber(redis.call('ZSCORE', PLACES, owner) or 0)
    if ends > now and #places < most then
      local record = redis.call('HGET', CLAIMS, owner) or ''
      local weight, since, _, who = string.match(record, '^(%d+)|(%d+)|(%x*)|(.*)$')
      if weight then
        places[#places + 1] = { who, tonumber(weight), math.max(0, now_us - tonumber(since)), left(ends) }
      end
    end
  end
end
local paused = pause and pause > now and left(pause) or -1
return { capacity, #seats, waiting, last, paused, cursor(last), holders, places }
