-- Deletes a key of any type. Its mark stays.

redis.call('DEL', KEYS[2])
return answer
