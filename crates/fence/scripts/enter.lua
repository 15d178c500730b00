-- Raises the mark and nothing more: before the first read of a read-modify-write.

return answer
