-- inspect: reads one resource and changes nothing. What has expired is left out. Put after resource.lua.
--
-- KEYS  1-9 as in resource.lua
-- ARGV  3 how many holders and waiters to list at the most
-- Reply capacity, number of holders, number of waiters, value of the fence or nil, pause: ms left or -1, cursor,
--       [holder…], [who, weight, waited in microseconds, remaining ms, silent: 1 or 0]…,
--       foreign lock: type, hash, remaining ms or -1; or empty

local most = tonumber(ARGV[3])
-- MGET takes a key of another type for a missing one: GET fails for it.
if not last then last = redis.call('GET', FENCE) end
local leases = {}
if holder and not holder.foreign then leases[1] = holder end
if share_count > 0 then
  for _, owner in ipairs(redis.call('ZRANGEBYSCORE', SHARES, '(' .. int(math.floor(now)), '+inf')) do
    leases[#leases + 1] = share_of(owner)
  end
end
table.sort(leases, function(a, b) return a.token < b.token end)
local holders, waiters = {}, {}
for i = 1, math.min(most, #leases) do holders[i] = describe(leases[i]) end
local waiting = 0
if queue_length() > 0 then
  waiting = redis.call('ZCOUNT', PLACES, '(' .. int(math.floor(now)), '+inf')
  -- The queue may contain expired places, so more of it is read than is listed. Silent waiters are at its end: they are
  -- listed where they stand.
  local count = most + queue_length() - waiting
  local line = {}
  local function add(owners, offset)
    for i = 1, #owners, 2 do line[#line + 1] = { owners[i], tonumber(owners[i + 1]) - offset, offset > 0 and 1 or 0 } end
  end
  add(redis.call('ZRANGEBYSCORE', LINE, '-inf', '(' .. int(SILENT), 'WITHSCORES', 'LIMIT', 0, count), 0)
  add(redis.call('ZRANGEBYSCORE', LINE, int(SILENT), '+inf', 'WITHSCORES', 'LIMIT', 0, count), SILENT)
  table.sort(line, function(a, b) return a[2] < b[2] end)
  for _, place in ipairs(line) do
    local ends = tonumber(redis.call('ZSCORE', PLACES, place[1]) or 0)
    if ends > now and #waiters < most then
      local before, _, _, _, _, rest = place_in(redis.call('HGET', CLAIMS, place[1]))
      if before then
        local weight, since = string.match(before, '^(%d+)|(%d+)|$')
        local waited = math.max(0, now_us - tonumber(since))
        waiters[#waiters + 1] = { string.sub(rest, 2), tonumber(weight), waited, left(ends), place[3] }
      end
    end
  end
end
local paused = pause and pause > now and left(pause) or -1
return { capacity, #leases, waiting, last, paused, cursor(), holders, waiters, describe_foreign() }
