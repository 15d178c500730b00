-- renew, the plain case, for many claims at once: holders of 1 of 1 with nothing special about them.
--
-- KEYS  n owner keys
-- ARGV  owner, ttl ms, for each of them
-- Reply for each: its token, if it is held and now lasts the ttl; 0 if renew_one.lua must take a closer look
--
-- Two commands for each claim, on the owner key alone.

local tokens = {}
for i = 1, #KEYS do
  local owner, ttl = ARGV[2 * i - 1], ARGV[2 * i]
  local value = redis.pcall('GET', KEYS[i])
  local reply = 0
  if type(value) == 'string' and string.sub(value, 1, 33) == owner .. '|' then
    -- The empty field is the marks: a holder with marks is not plain.
    local token = string.match(value, '^%d+|%d+|%d+||', 34) and string.match(value, '^%d+', 34)
    -- GT never shortens a lease. It also returns 0 if the lease was renewed in the same millisecond and lasts the ttl.
    local renewed = token
      and (redis.call('PEXPIRE', KEYS[i], ttl, 'GT') == 1 or redis.call('PTTL', KEYS[i]) == tonumber(ttl))
    if renewed then reply = tonumber(token) end
  end
  tokens[i] = reply
end
return tokens
