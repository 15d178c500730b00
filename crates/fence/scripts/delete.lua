-- Deletes a key, of whatever type. Its mark stays.

redis.call('DEL', KEYS[2])
return answer
