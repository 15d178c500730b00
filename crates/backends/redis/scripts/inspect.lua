-- inspect: reads one resource and changes nothing. What has expired is left out. Put after resource.lua.
--
-- KEYS  1-9 as in resource.lua
-- ARGV  3 how many holders and waiters to list at the most
-- Reply capacity, number of holders, number of waiters, value of the fence or nil, pause: ms left or -1, cursor,
--       [holder…], [who, weight, waited in microseconds, remaining ms]…

local most = tonumber(ARGV[3])
-- MGET takes a key of another type for a missing one: GET fails for it.
if not last then last = redis.call('GET', FENCE) end
local leases = {}
if holder then leases[1] = holder end
if share_count > 0 then
  for _, owner in ipairs(redis.call('ZRANGEBYSCORE', SHARES, '(' .. int(math.floor(now)), '+inf')) do
    leases[#leases + 1] = share_of(owner)
  end
end
table.sort(leases, function(a, b) return (a.token or 0) < (b.token or 0) end)
local holders, waiters = {}, {}
for i = 1, math.min(most, #leases) do holders[i] = describe(leases[i]) end
local waiting = 0
if queue_length() > 0 then
  waiting = redis.call('ZCOUNT', PLACES, '(' .. int(math.floor(now)), '+inf')
  -- The queue may contain expired places, so more of it is read than is listed.
  local expired = queue_length() - waiting
  for _, owner in ipairs(redis.call('ZRANGE', LINE, 0, most + expired - 1)) do
    local ends = tonumber(redis.call('ZSCORE', PLACES, owner) or 0)
    if ends > now and #waiters < most then
      local record = redis.call('HGET', CLAIMS, owner) or ''
      local weight, since, _, who = string.match(record, '^(%d+)|(%d+)|(%x*)|(.*)$')
      if weight then
        waiters[#waiters + 1] = { who, tonumber(weight), math.max(0, now_us - tonumber(since)), left(ends) }
      end
    end
  end
end
local paused = pause and pause > now and left(pause) or -1
return { capacity, #leases, waiting, last, paused, cursor(), holders, waiters }
