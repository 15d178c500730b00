-- The rule, and what every script here begins with.
--
-- KEYS  1 the mark  2 the data, in the same slot
-- ARGV  1 token  2 hash of the owner, or empty  3 how long the mark is kept, in ms; 0 for ever
-- Reply raised | again, when it was admitted
--       stale, the highest seen | former, the ceiling, when it was refused; nothing was changed
--
-- The mark is written before the effect: if that fails (a key of another type), a mark that is too high does no harm.

local token, owner = tonumber(ARGV[1]), ARGV[2]
local mark = redis.call('HMGET', KEYS[1], 'token', 'owner', 'ceiling')
local highest, ceiling = tonumber(mark[1] or 0), tonumber(mark[3] or 0)
if ceiling > 0 and token >= ceiling then return { 'former', mark[3] } end
if token < highest then return { 'stale', mark[1] } end
if token == highest and (owner == '' or mark[2] ~= owner) then return { 'stale', mark[1] } end
local answer = { 'again' }
if token > highest then
  answer = { 'raised' }
  redis.call('HSET', KEYS[1], 'token', ARGV[1], 'owner', owner)
end
if ARGV[3] == '0' then
  redis.call('PERSIST', KEYS[1])
else
  redis.call('PEXPIRE', KEYS[1], ARGV[3])
end
