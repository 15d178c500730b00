-- Moves a mark to the numbers of another backend: up without a ceiling, down with one. The same steps as `rule::rebase`.
-- Writes an audit record, which does not expire: the mark may live on for as long as it is used.
--
-- KEYS  1 the mark  2 the audit records, a list, newest first
-- ARGV  1 the new mark  2 the ceiling, or empty: the existing one, else half-way  3 the operator  4 the reason
-- Reply moved, the mark before, its ceiling or empty, the mark after, its ceiling or empty
--       nothing: there is no mark
--       refused, the mark, its ceiling or empty: `rule::rebase` tells why

local mark = redis.call('HMGET', KEYS[1], 'token', 'ceiling')
if not mark[1] then return { 'nothing' } end
local digits = function(number) return string.format('%.0f', number) end
local to, highest, existing = tonumber(ARGV[1]), tonumber(mark[1]), tonumber(mark[2] or '')
local top = existing or highest
local ceiling = ARGV[2]
local refused = { 'refused', mark[1], mark[2] or '' }
if to >= top then
  if ceiling ~= '' then return refused end
  redis.call('HDEL', KEYS[1], 'ceiling')
else
  local former = to < highest and highest or top
  if ceiling == '' and existing and to < highest then return refused end
  if ceiling == '' then ceiling = digits(existing or to + math.ceil((former - to) / 2)) end
  if tonumber(ceiling) <= to or tonumber(ceiling) > former then return refused end
  redis.call('HSET', KEYS[1], 'ceiling', ceiling)
end
redis.call('HSET', KEYS[1], 'token', ARGV[1], 'owner', '')
local at = redis.call('TIME')
local record = { at = at[1], by = ARGV[3], why = ARGV[4], was = mark[1], now = ARGV[1], ceiling = ceiling }
redis.call('LPUSH', KEYS[2], cjson.encode(record))
redis.call('LTRIM', KEYS[2], 0, 99)
return { 'moved', mark[1], mark[2] or '', ARGV[1], ceiling }
