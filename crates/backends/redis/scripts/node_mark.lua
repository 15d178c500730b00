-- mark: replaces the birth mark, if it is what it was thought to be. It is the one key that does not end.
--
-- KEYS  1 the birth mark
-- ARGV  1 what it was, empty if there was none  2 what it is to be
-- Reply what it is then

local mark = redis.call('GET', KEYS[1]) or ''
if mark ~= ARGV[1] then return mark end
redis.call('SET', KEYS[1], ARGV[2])
return ARGV[2]
