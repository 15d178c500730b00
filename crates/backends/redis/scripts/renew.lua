-- renew, the plain case, for many at once: holders of 1 of 1 with nothing special about them.
--
-- KEYS  n owner keys
-- ARGV  owner, ttl ms, for each of them
-- Reply for each: its token, if it is held and now lasts the ttl; 0 if renew_one.lua must look closer
--
-- Two commands each, on the owner key alone.

local answers = {}
for i = 1, #KEYS do
  local owner, ttl = ARGV[2 * i - 1], ARGV[2 * i]
  local value = redis.pcall('GET', KEYS[i])
  local answer = 0
  if type(value) == 'string' and string.sub(value, 1, 33) == owner .. '|' then
    local token = string.match(value, '^%d+|%d+|%d+||', 34) and string.match(value, '^%d+', 34)
    -- Renewed twice in a millisecond it lasts the ttl already.
    local kept = token and (redis.call('PEXPIRE', KEYS[i], ttl, 'GT') == 1 or redis.call('PTTL', KEYS[i]) == tonumber(ttl))
    if kept then answer = tonumber(token) end
  end
  answers[i] = answer
end
return answers
