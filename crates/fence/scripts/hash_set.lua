-- Sets fields of a hash.
--
-- ARGV  from 4 on: field, value, field, value, ...

for i = 4, #ARGV, 2 do
  redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 1])
end
return answer
