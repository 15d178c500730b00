-- acquire, the plain case: 1 of 1, without a note, where nobody waits and nobody shares. Put before resource.lua, with
-- the same keys, arguments and replies as acquire.lua, and the id of the request as ARGV 17, which it returns after the
-- other fields; whatever is not plain goes on there.
--
-- It does what acquire.lua would do, in fewer steps: free, or taken over from the holder. The suite plays both.

if ARGV[5] == '1' and ARGV[6] == '1' and ARGV[11] == '' and redis.call('EXISTS', KEYS[7], KEYS[9]) == 0 then
  local value, from = redis.pcall('GET', KEYS[1]), ARGV[14]
  local turns, newest
  if not value and from == '' then
    turns, newest = 0, 0
  elseif from ~= '' and type(value) == 'string' and string.sub(value, 1, 33) == from .. '|' then
    newest, turns = string.match(value, '^(%d+)|%d+|(%d+)||', 34)
    turns = turns and turns + 1
  end
  local fence = turns and redis.call('GET', KEYS[2])
  if turns and (not fence or string.match(fence, '^%d+$')) then
    local time = redis.call('TIME')
    local now_us = time[1] * 1000000 + time[2]
    local clock_us, floor = now_us + ARGV[13], tonumber(ARGV[12])
    local token = math.max((fence or 0) + 1, newest + 1, clock_us, floor + 1)
    -- A floor or a token that is absurd is for acquire.lua to refuse.
    if floor <= clock_us + 86400000000 and token < 9007199254740992 then
      local ttl, text = math.max(1, ARGV[7]), string.format('%.0f', token)
      redis.call('SET', KEYS[1],
        ARGV[4] .. '|' .. text .. '|' .. string.format('%.0f', now_us) .. '|' .. turns .. '||' .. ARGV[10], 'PX', ttl)
      redis.call('SET', KEYS[2], text, 'PX', 7200000 + math.max(0, math.ceil((token - now_us) / 1000)))
      if from ~= '' and tonumber(ARGV[15]) >= 0 then redis.call('SET', KEYS[10], 'b', 'PX', math.max(1, ARGV[15])) end
      return { 'granted', text, tonumber(ARGV[7]), math.max(0, token - clock_us), ARGV[17] }
    end
  end
end
