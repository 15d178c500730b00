-- Sets a string.
--
-- ARGV  4 value  5 how long it is kept, in ms; 0: for ever

if ARGV[5] == '0' then
  redis.call('SET', KEYS[2], ARGV[4])
else
  redis.call('SET', KEYS[2], ARGV[4], 'PX', ARGV[5])
end
return answer
