-- mark: compares and sets the birth mark. It is the one key that does not expire. ADR 0016.
--
-- KEYS  1 the birth mark
-- ARGV  1 the expected mark, empty if there is none  2 the new mark
-- Reply the mark that is stored now

local mark = redis.call('GET', KEYS[1]) or ''
if mark ~= ARGV[1] then return mark end
redis.call('SET', KEYS[1], ARGV[2])
return ARGV[2]
