-- acquire, the plain case: 1 of 1, without a note, where nothing waits and nothing shares. ADR 0019.
--
-- Put before resource.lua, with the same keys, arguments and replies as acquire.lua, and the id of the request as ARGV
-- 17, which it returns after the other fields. Every other case falls through to acquire.lua. This part never refuses a
-- claim, and writes nothing before it has decided.
--
-- It grants as acquire.lua would, in fewer steps: the resource is free, or the holder hands over. The tests compare
-- both. `state` (KEYS 7) exists if there is anything but a plain holder; KEYS 9 is the tombstone of the owner.

if ARGV[5] == '1' and ARGV[6] == '1' and ARGV[11] == '' and redis.call('EXISTS', KEYS[7], KEYS[9]) == 0 then
  local value, predecessor = redis.pcall('GET', KEYS[1]), ARGV[14]
  local handovers, newest
  if not value and predecessor == '' then
    handovers, newest = 0, 0
  elseif predecessor ~= '' and type(value) == 'string' and string.sub(value, 1, 33) == predecessor .. '|' then
    -- The empty field is the marks: a holder with marks is not plain.
    newest, handovers = string.match(value, '^(%d+)|%d+|(%d+)||', 34)
    handovers = handovers and handovers + 1
  end
  local fence = handovers and redis.call('GET', KEYS[2])
  if handovers and (not fence or string.match(fence, '^%d+$')) then
    local time = redis.call('TIME')
    local now_us = time[1] * 1000000 + time[2]
    local clock_us, floor = now_us + ARGV[13], tonumber(ARGV[12])
    local token = math.max((fence or 0) + 1, newest + 1, clock_us, floor + 1)
    -- A floor more than a day ahead, or a token at 2^53, is left to acquire.lua, which refuses it if it must.
    if floor <= clock_us + 86400000000 and token < 9007199254740992 then
      local ttl, text = math.max(1, ARGV[7]), string.format('%.0f', token)
      redis.call('SET', KEYS[1],
        ARGV[4] .. '|' .. text .. '|' .. string.format('%.0f', now_us) .. '|' .. handovers .. '||' .. ARGV[10], 'PX', ttl)
      redis.call('SET', KEYS[2], text, 'PX', 7200000 + math.max(0, math.ceil((token - now_us) / 1000)))
      if predecessor ~= '' and tonumber(ARGV[15]) >= 0 then
        redis.call('SET', KEYS[10], 'b', 'PX', math.max(1, ARGV[15]))
      end
      return { 'granted', text, tonumber(ARGV[7]), math.max(0, token - clock_us), ARGV[17] }
    end
  end
end
