-- The rule. Every script that writes begins with this text.
--
-- KEYS  1 the mark, a hash  2 the data key, in the same slot
-- ARGV  1 token  2 hash of the owner, or empty  3 how long the mark is kept, in ms; 0: for ever
-- Reply raised | again: the pass was admitted
--       stale, the highest token | former, the ceiling: the pass was refused, and nothing was changed
--
-- The mark is written before the data. If writing the data fails (a key of another type), a mark that is too high does no
-- harm.

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
